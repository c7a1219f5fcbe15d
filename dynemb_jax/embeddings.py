"""The state of a model's tables and what a training step does with it."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.core import Tracer

from dynemb_jax._autodiff.lookup import find_with_taps, lookup_with_taps
from dynemb_jax._primitives.count_steps import count_steps
from dynemb_jax._primitives.features import COMBINER_CODES, FeaturePlan
from dynemb_jax._primitives.lookup import tables_of
from dynemb_jax._primitives.update import GradientPlan, ResidualPlan, update
from dynemb_jax.errors import DELETED_TOKEN_TEXT, InputError, StaleStateError, typed
from dynemb_jax.group import Feature, Group
from dynemb_jax.inputs import FeatureIds, normalize

_ROWS_NAME = "dynemb_rows"
_OWN_STEP = -1  # the step operand that means: the group's own count

remat_policy = jax.checkpoint_policies.save_only_these_names(_ROWS_NAME)
"""Policy for ``jax.checkpoint`` that keeps looked-up rows, so that no lookup runs twice."""


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
        rows: float32, per feature ``(..., dim)``; differentiate your loss for it.
    """

    __slots__ = ("group", "header", "index", "plans", "positions", "rows", "unique_rows", "weights")

    def __init__(self, rows: Any, residual: tuple[Any, ...], static: tuple[Any, ...]):
        """Made by :func:`lookup`."""
        self.rows = rows
        self.header, self.index, self.unique_rows, self.weights = residual
        self.group, self.positions, self.plans = static

    def tree_flatten(self) -> tuple[tuple[Any, Any], tuple[Any, ...]]:
        """For JAX."""
        residual = (self.header, self.index, self.unique_rows, self.weights)
        return (self.rows, residual), (self.group, self.positions, self.plans)

    @classmethod
    def tree_unflatten(cls, static: tuple[Any, ...], children: tuple[Any, Any]) -> "Activations":
        """For JAX."""
        made = object.__new__(cls)
        made.rows, residual = children
        # JAX also unflattens with placeholders in place of whole subtrees.
        fields = residual if isinstance(residual, tuple) else (residual,) * 4
        made.header, made.index, made.unique_rows, made.weights = fields
        made.group, made.positions, made.plans = static
        return made

    def __repr__(self) -> str:
        return f"Activations(rows={jax.tree.map(jnp.shape, self.rows)})"


def create(
    features: Any,
    *,
    seed: int = 0,
    deterministic: bool = False,
    mesh: Any = None,
    axis: Any = None,
) -> Embeddings:
    """Creates the tables of a model, empty.

    Args:
        features: pytree of FeatureConfig, or a single one; ids come in and rows go out in the
            same nest. Features that name the same TableConfig share the table.
        seed: of the first values of rows; any integer, taken modulo 2**64.
        deterministic: the same batches give the same bits. On the CPU they always do.
        mesh: not available yet.
        axis: not available yet.

    Returns:
        The first Embeddings. The tables are freed by :func:`close`, or when no Embeddings and no
        compiled function refers to them.

    Raises:
        ConfigError: features that cannot work together.
        TableFullError, TableMemoryError: no room for ``initial_rows``.
    """
    for option, value in (("mesh", mesh), ("axis", axis)):
        if value is not None:
            raise NotImplementedError(
                f"{option}={value!r} is not available yet; create the tables on one device."
            )
    del deterministic  # the CPU backend sums in the order of the ids in any case
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise InputError(f"seed must be an integer, got {seed!r}; pass e.g. seed=0.")
    group = Group(features, int(seed))
    return fresh(group)


def fresh(group: Group) -> Embeddings:
    """An Embeddings at the current version of the group."""
    token = jax.device_put(np.array([group.version()], np.int32), group.device)
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


def _active(group: Group, ids: Any) -> tuple[list[int], list[FeatureIds]]:
    """Positions and normalized ids of the features that are looked up."""
    try:
        leaves = group.treedef.flatten_up_to(ids)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"ids must have the nest of the features, {group.treedef}: {error}; pass None for a "
            "feature that is not looked up."
        ) from None
    positions, inputs = [], []
    for position, (feature, leaf) in enumerate(zip(group.features, leaves, strict=True)):
        if leaf is None:
            continue
        feature_ids = normalize(leaf, feature.path)
        _check_feature(feature, feature_ids)
        positions.append(position)
        inputs.append(feature_ids)
    if not positions:
        raise InputError("lookup got ids for no feature; pass ids for at least one.")
    return positions, inputs


def _check_feature(feature: Feature, ids: FeatureIds) -> None:
    combiner = feature.config.combiner
    if combiner is not None and not ids.shape:
        raise InputError(
            f"feature {feature.path} pools over the last axis of its ids (combiner={combiner!r}), "
            "got ids of shape (); pass ids of shape (..., L)."
        )
    if combiner is None and ids.weights is not None:
        raise InputError(
            f"feature {feature.path} has weights but no combiner to use them; set combiner='sum', "
            "'mean' or 'sqrtn' in its FeatureConfig, or leave weights out."
        )


def _plans(group: Group, positions: Sequence[int], inputs: Sequence[FeatureIds]) -> Any:
    plans = []
    for position, ids in zip(positions, inputs, strict=True):
        feature = group.features[position]
        code = COMBINER_CODES[feature.config.combiner]
        weighted = ids.weights is not None
        dim = int(feature.config.table.dim)
        plans.append(FeaturePlan(feature.table, dim, code, ids.wide, ids.padding, weighted))
    return tuple(plans)


def _nest(group: Group, positions: Sequence[int], leaves: Sequence[Any]) -> Any:
    """The leaves of active features in the nest of all; None for the others."""
    full: list[Any] = [None] * len(group.features)
    for position, leaf in zip(positions, leaves, strict=True):
        full[position] = leaf
    return jax.tree.unflatten(group.treedef, full)


def _unnest(group: Group, positions: Sequence[int], nest: Any, what: str) -> list[Any]:
    try:
        leaves = group.treedef.flatten_up_to(nest)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{what} must have the nest of acts.rows, {group.treedef}: {error}; differentiate for "
            "acts.rows and pass the result."
        ) from None
    return [leaves[position] for position in positions]


def lookup(
    emb: Embeddings, ids: Any, *, train: bool = True, taps: Any = None
) -> tuple[Activations, Embeddings]:
    """Looks ids up: finds or inserts (train), or only finds.

    Args:
        emb: the current Embeddings. With ``train=False`` an older one will do.
        ids: in the nest of the features; each leaf an integer array ``(...)``, Keys, Padded, or
            None to leave the feature out. int32 is sign-extended, uint32 zero-extended to 64 bits;
            NumPy int64 passed outside of jit keeps all bits, inside of jit JAX has cut it: use
            :func:`dynemb_jax.keys`.
        train: True inserts absent keys, with their first values. False changes nothing: an absent
            key gives its table's ``missing_row``.
        taps: zeros from :func:`taps`, to receive the gradient of the rows; or None.

    Returns:
        ``acts`` and the next Embeddings. ``acts.rows`` is float32: ``(..., dim)`` per feature, or
        with a combiner ``(..., dim)`` of ids ``(..., L)``. Padding gives zeros; a bag of nothing
        is 0. Weights of Padded are differentiable. Apply acts of a training lookup with
        :func:`apply_gradients`.

    Raises:
        InputError: ids of a wrong type, shape or nest, lengths outside of the ids.
        StaleStateError: emb is not the current state (train only).
        TableFullError, TableMemoryError: no room for new keys; nothing has changed.
    """
    token = checked_token(emb)
    group = emb.group
    positions, inputs = _active(group, ids)
    plans = _plans(group, positions, inputs)
    tap_leaves = [None] * len(positions)
    if taps is not None:
        tap_leaves = _unnest(group, positions, taps, "taps")
        for position, plan, i, tap in zip(positions, plans, inputs, tap_leaves, strict=True):
            if jnp.shape(tap) != plan.rows_shape(i.ids.shape):
                raise InputError(
                    f"feature {group.features[position].path}: taps must have shape "
                    f"{plan.rows_shape(i.ids.shape)}, got {jnp.shape(tap)}; make them with "
                    "dynemb_jax.taps(emb, ids)."
                )
    verb = lookup_with_taps if train else find_with_taps
    with typed():
        results = verb(group.id, plans, token, inputs, tap_leaves)
    # The name must stand on the outputs: remat does not look into custom derivatives.
    rows = [checkpoint_name(row, _ROWS_NAME) for row in results.rows]
    weights = tuple(i.weights for i in inputs) if train else ()
    residual = (results.header, results.indices, results.unique_rows, weights)
    static = (group, tuple(positions), plans if train else None)
    acts = Activations(_nest(group, positions, rows), residual, static)
    return acts, Embeddings(results.token, group)


def taps(emb: Embeddings, ids: Any) -> Any:
    """Zeros shaped like the rows that ``lookup(emb, ids)`` returns, in its nest.

    Differentiating a loss that calls ``lookup(emb, ids, taps=taps)`` for them gives the gradient
    of the rows, where lookup and loss are one function.
    """
    checked_token(emb)
    positions, inputs = _active(emb.group, ids)
    plans = _plans(emb.group, positions, inputs)
    zeros = [
        jnp.zeros(plan.rows_shape(i.ids.shape), jnp.float32)
        for plan, i in zip(plans, inputs, strict=True)
    ]
    return _nest(emb.group, positions, zeros)


Rate = float | jax.Array | Callable[[Any], Any]


def apply_gradients(
    emb: Embeddings,
    acts: Activations | Sequence[Activations],
    grads: Any,
    *,
    learning_rate: Rate | None = None,
    step: Any = None,
) -> Embeddings:
    """Updates the looked-up rows: gradients of equal keys are summed, each row takes one step.

    Args:
        emb: the current Embeddings.
        acts: of a training lookup, or a list of them (micro-batches, towers) for one exact update
            over all. Acts stacked by ``lax.scan`` along a first axis count as a list.
        grads: gradient of the loss for ``acts.rows``, in its nest; a list beside a list.
        learning_rate: number, schedule (callable of the step) or traced scalar in place of the
            tables' own.
        step: updates done before this one, for schedules and global bias correction; None uses
            the count of this Embeddings.

    Returns:
        The next Embeddings.

    Raises:
        InputError: grads that do not fit acts, acts of ``train=False`` or of other tables.
        StaleStateError: emb is not the current state, or keys were erased since the lookup.
    """
    token = checked_token(emb)
    group = emb.group
    if isinstance(acts, Activations):
        acts, grads = [acts], [grads]
    elif not isinstance(grads, list | tuple) or len(grads) != len(acts):
        raise InputError(
            f"apply_gradients got a list of {len(acts)} acts, so grads must be a list of as many, "
            f"got {type(grads).__name__}; pass one gradient nest per lookup."
        )
    if not acts:
        raise InputError("apply_gradients got no acts; pass the Activations of a lookup.")
    residuals = [
        residual
        for one, grad in zip(acts, grads, strict=True)
        for residual in _unstacked(one, _checked_grads(group, one, grad))
    ]
    plans = tuple(plan for plan, _ in residuals)
    operands = [operand for _, operands in residuals for operand in operands]
    rates = [
        table.optimizer.learning_rate if learning_rate is None else learning_rate
        for table in group.tables
    ]
    count = step
    with typed():
        if count is None and any(callable(rate) for rate in rates):
            token, count = count_steps(group.id, token)
    values = [_rate(rate, count) for rate in rates]
    native_step = jnp.asarray(_OWN_STEP if step is None else step, jnp.int32).reshape(1)
    with typed():
        token = update(group.id, plans, [token, jnp.stack(values), native_step, *operands])
    return Embeddings(token, group)


def _rate(rate: Rate, step: Any) -> jax.Array:
    return jnp.asarray(rate(step) if callable(rate) else rate, jnp.float32).reshape(())


def _checked_grads(group: Group, acts: Activations, grads: Any) -> list[jax.Array]:
    if not isinstance(acts, Activations):
        raise InputError(
            f"apply_gradients needs the Activations of lookup, got {type(acts).__name__}; pass "
            "acts itself, not acts.rows."
        )
    if acts.group is not group:
        raise InputError(
            f"apply_gradients got acts of other tables, {acts.group!r}, for {group!r}; pass the "
            "Embeddings that was looked up."
        )
    if acts.plans is None:
        raise InputError(
            "apply_gradients got acts of lookup(train=False), which changes nothing; look up with "
            "train=True to train."
        )
    leaves = _unnest(group, acts.positions, grads, "grads")
    rows = _unnest(group, acts.positions, acts.rows, "acts.rows")
    checked = []
    for position, grad, row in zip(acts.positions, leaves, rows, strict=True):
        path = group.features[position].path
        if grad is None or jnp.shape(grad) != jnp.shape(row):
            got = "None" if grad is None else str(jnp.shape(grad))
            raise InputError(
                f"feature {path}: grads must have shape {jnp.shape(row)} like acts.rows, got "
                f"{got}; pass the gradient for acts.rows, zeros where there is none."
            )
        grad = jnp.asarray(grad)
        if not jnp.issubdtype(grad.dtype, jnp.floating):
            raise InputError(
                f"feature {path}: grads must be floating, got {grad.dtype}; pass the gradient "
                "for acts.rows."
            )
        checked.append(grad.astype(jnp.float32))
    return checked


def _residual_plan(acts: Activations) -> ResidualPlan:
    gradients = [GradientPlan(p.table, p.combiner, p.weighted) for p in acts.plans]
    return ResidualPlan(tables_of(acts.plans), tuple(gradients))


def _unstacked(
    acts: Activations, grads: list[jax.Array]
) -> list[tuple[ResidualPlan, list[jax.Array]]]:
    """Operands of the lookups that acts hold: one, or as many as leading axes stack."""
    operands = [acts.header, *acts.unique_rows]
    for index, grad, weights in zip(acts.index, grads, acts.weights, strict=True):
        operands += [index, grad] if weights is None else [index, grad, weights]
    lead = acts.header.ndim - 1
    plan = _residual_plan(acts)
    if lead == 0:
        return [(plan, operands)]
    flat = [operand.reshape(-1, *operand.shape[lead:]) for operand in operands]
    return [(plan, [operand[i] for operand in flat]) for i in range(flat[0].shape[0])]
