"""The state of a model's tables, and what a lookup hands to the update."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dynemb_jax.errors import DELETED_TOKEN_TEXT, InputError, StaleStateError
from dynemb_jax.group import Group


@jax.tree_util.register_pytree_with_keys_class
class Embeddings:
    """The state of a table group: a token, and statically which group it belongs to.

    Thread it through steps and donate it like any JAX state: every lookup, apply_gradients,
    assign and erase returns the next one. The rows live in the native library, so growth changes
    no shape and recompiles nothing. The token is the version of the tables; an Embeddings that is
    not the current one raises StaleStateError where it would change them.
    """

    __slots__ = ("group", "token")

    def __init__(self, token: Any, group: Group):
        """Made by :func:`create`."""
        self.token = token
        self.group = group

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(table.name for table in self.group.tables)

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any]], Group]:
        """For JAX."""
        return ((jax.tree_util.GetAttrKey("token"), self.token),), self.group

    def tree_flatten(self) -> tuple[tuple[Any], Group]:
        """For JAX."""
        return (self.token,), self.group

    @classmethod
    def tree_unflatten(cls, group: Group, children: tuple[Any]) -> "Embeddings":
        """For JAX."""
        return cls(children[0], group)

    def __repr__(self) -> str:
        return f"Embeddings({self.group!r})"


@jax.tree_util.register_pytree_node_class
class Activations:
    """What a lookup gives: ``rows``, in the nest of the features, and what the update needs.

    Attributes:
        rows: per feature ``(..., dim)``, of the table's ``output_dtype``; differentiate your loss
            for it.
    """

    __slots__ = (
        "group",
        "header",
        "index",
        "plans",
        "positions",
        "row_splits",
        "rows",
        "unique_rows",
        "weights",
    )

    def __init__(self, rows: Any, residual: tuple[Any, ...], static: tuple[Any, ...]):
        """Made by :func:`lookup`."""
        self.rows = rows
        self._set_residual(residual)
        self.group, self.positions, self.plans = static

    def _set_residual(self, residual: tuple[Any, ...]) -> None:
        # Per feature: weights or None, and row splits where they pooled it, or None.
        self.header, self.index, self.unique_rows, self.weights, self.row_splits = residual

    def tree_flatten(self) -> tuple[tuple[Any, Any], tuple[Any, ...]]:
        """For JAX."""
        residual = (self.header, self.index, self.unique_rows, self.weights, self.row_splits)
        return (self.rows, residual), (self.group, self.positions, self.plans)

    @classmethod
    def tree_unflatten(cls, static: tuple[Any, ...], children: tuple[Any, Any]) -> "Activations":
        """For JAX."""
        made = object.__new__(cls)
        made.rows, residual = children
        # JAX also unflattens with placeholders in place of whole subtrees.
        made._set_residual(residual if isinstance(residual, tuple) else (residual,) * 5)
        made.group, made.positions, made.plans = static
        return made

    def __repr__(self) -> str:
        return f"Activations(rows={jax.tree.map(jnp.shape, self.rows)})"


def create(
    features: Any,
    *,
    seed: int = 0,
    deterministic: bool = False,
    max_outstanding: int = 4,
    mesh: Any = None,
    axis: Any = None,
) -> Embeddings:
    """Creates the tables of a model, empty.

    Args:
        features: pytree of FeatureConfig, or a single one; ids come in and rows go out in the
            same nest. Features that name the same TableConfig share the table.
        seed: of the first values of rows; any integer, taken modulo 2**64.
        deterministic: the same calls in the same order give the same bits in every run: rows,
            optimizer state, results, which keys a full table takes and which it evicts, unless a
            clock decides (``eviction.timestamp``, ``seconds=``). On the CPU they always do; on a
            GPU gradients are then summed in the order of the ids, which makes a step slower.
        max_outstanding: for tables with eviction: rows of so many latest training lookups are not
            evicted before their update.
        mesh: not available yet.
        axis: not available yet.

    Returns:
        The first Embeddings. The tables are freed by :func:`close`, or when no Embeddings and no
        compiled function refers to them.

    Raises:
        ConfigError: features that cannot work together.
        TableFullError, TableMemoryError: no room for ``initial_rows``.
        NotImplementedError: what this release cannot do, by name.
    """
    for option, value in (("mesh", mesh), ("axis", axis)):
        if value is not None:
            raise NotImplementedError(
                f"{option}={value!r} is not available yet; create the tables on one device."
            )
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise InputError(f"seed must be an integer, got {seed!r}; pass e.g. seed=0.")
    if not isinstance(deterministic, bool):
        raise InputError(f"deterministic must be True or False, got {deterministic!r}.")
    is_count = isinstance(max_outstanding, int | np.integer) and not isinstance(
        max_outstanding, bool
    )
    if not is_count or not 1 <= max_outstanding < 1 << 20:
        raise InputError(
            f"max_outstanding must be a whole number in [1, 2**20), got {max_outstanding!r}; it is "
            "the number of lookups before their update, 4 unless you say otherwise."
        )
    group = Group(features, int(seed), int(max_outstanding), deterministic)
    return at_version(group, group.version())


def at_version(group: Group, version: int) -> Embeddings:
    """An Embeddings of the group whose token is ``version``."""
    token = jax.device_put(np.array([version], np.int32), group.device)
    if isinstance(token, Tracer):
        raise InputError(
            "create and resync run outside of jit, got called while tracing; call them before and "
            "pass the Embeddings in."
        )
    return Embeddings(token, group)


def checked_token(emb: Embeddings) -> jax.Array:
    """The token, or an error that says what happened to it.

    Raises:
        InputError: no Embeddings.
        ClosedError: the tables are closed.
        StaleStateError: the token is not what this package made.
    """
    if not isinstance(emb, Embeddings):
        raise InputError(
            f"expected the Embeddings of dynemb_jax.create, got {type(emb).__name__}; "
            "pass emb as the first argument."
        )
    emb.group.check_open()
    token = emb.token
    if getattr(token, "dtype", None) != np.int32 or getattr(token, "shape", None) != (1,):
        raise StaleStateError(
            f"the token of this Embeddings is {token!r}, expected int32[1]; something (an "
            "optimizer or a tree map) changed it. Keep the Embeddings out of the parameters you "
            "optimize, and call dynemb_jax.resync(emb) to go on."
        )
    is_concrete = isinstance(token, jax.Array) and not isinstance(token, Tracer)
    if is_concrete and token.is_deleted():
        raise StaleStateError(DELETED_TOKEN_TEXT)
    return jnp.asarray(token)


def nest(group: Group, positions: Sequence[int], leaves: Sequence[Any]) -> Any:
    """The leaves of active features in the nest of all; None for the others."""
    full: list[Any] = [None] * len(group.features)
    for position, leaf in zip(positions, leaves, strict=True):
        full[position] = leaf
    return jax.tree.unflatten(group.treedef, full)


def unnest(
    group: Group,
    positions: Sequence[int],
    nest: Any,
    what: str,
    do: str = "differentiate for acts.rows and pass the result",
) -> list[Any]:
    """The leaves of active features from a nest of all; InputError names ``what``."""
    try:
        leaves = group.treedef.flatten_up_to(nest)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{what} must have the nest of the features, {group.treedef}: {error}; {do}."
        ) from None
    for position, leaf in enumerate(leaves):
        if leaf is not None and position not in positions:
            raise InputError(
                f"{what} has a value for feature {group.features[position].path}, which was not "
                "looked up (its ids were None); leave None there as well."
            )
    return [leaves[position] for position in positions]
