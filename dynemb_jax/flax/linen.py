"""Dynamic embedding tables as a module of Flax Linen.

The tables' state is the collection ``"dynemb"``; their gradients arrive in ``"dynemb_taps"``::

    taps = dynemb_jax.flax.linen.make_taps(model, {"params": params, "dynemb": tables}, ids)

    def loss_fn(params, taps):
        variables = {"params": params, "dynemb": tables, "dynemb_taps": taps}
        logits, changed = model.apply(variables, ids, mutable="dynemb")
        return ..., changed["dynemb"]

    grad_fn = jax.value_and_grad(loss_fn, argnums=(0, 1), has_aux=True)
    (loss, tables), (d_params, d_taps) = grad_fn(params, taps)
    tables = dynemb_jax.flax.linen.apply_gradients(tables, d_taps)
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.core
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from dynemb_jax.embeddings import Embeddings, create
from dynemb_jax.errors import InputError, StaleStateError
from dynemb_jax.flax import _state
from dynemb_jax.flax._state import TableState
from dynemb_jax.lookups import taps as zeros_for
from dynemb_jax.updates import Rate

__all__ = [
    "COLLECTION",
    "TAPS",
    "DynamicEmbed",
    "apply_gradients",
    "discard",
    "make_taps",
]

COLLECTION = "dynemb"
"""The collection of the tables' state: a token a module, and lookups that wait for their update."""

TAPS = "dynemb_taps"
"""The collection of the taps, zeros that receive the gradients of looked-up rows."""

_TOKEN, _ACTS = "token", "acts"  # of COLLECTION; acts are there only while they wait
_TAPS_NAME = "taps"


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Recording:
    """Stands in the place of taps in the abstract run of make_taps; has no leaves."""


_WORDS = _state.Words(
    make_taps="make them with dynemb_jax.flax.linen.make_taps(model, variables, ...), pass them "
    'to model.apply as collection "dynemb_taps", and differentiate for them',
    apply_gradients="dynemb_jax.flax.linen.apply_gradients(tables, d_taps)",
    discard="dynemb_jax.flax.linen.discard(tables)",
)
_CREATE = (
    "write DynamicEmbed(dynemb_jax.create(features)) once, outside of any module's setup or "
    "__call__, and hand it to the model as an attribute"
)


class DynamicEmbed(nn.Module):
    """Rows of ids from tables that grow, in the nest of the features.

    Make it outside of the modules that call it: Linen builds modules anew at each call, tables are
    made once. ``init``, also under ``jax.jit`` or ``jax.eval_shape``, makes no tables and inserts
    nothing; it gives the state that these are in. The tables live until
    ``dynemb_jax.close(module.tables)``, or until no module, Embeddings or compiled function refers
    to them.

    Attributes:
        tables: the Embeddings of :func:`dynemb_jax.create`. Only says which tables these are;
            their state is in the collection.
    """

    tables: Embeddings

    def __post_init__(self) -> None:
        _state.checked(self.tables, _CREATE)
        super().__post_init__()

    @classmethod
    def from_features(cls, features: Any, *, seed: int = 0) -> "DynamicEmbed":
        """A module with new tables for a pytree of FeatureConfig."""
        return cls(create(features, seed=seed))

    @nn.compact
    def __call__(self, ids: Any, train: bool = True) -> Any:
        """Rows of ids; see :func:`dynemb_jax.lookup` for what ids may be.

        Args:
            ids: in the nest of the features.
            train: True inserts absent keys and lets rows learn; the collection "dynemb" must be
                mutable, and there must be taps. False reads only.

        Raises:
            InputError: collections that are missing or not mutable, or ids that do not fit.
            StaleStateError: lookups of before still wait for their update, or the collection is
                an old one.
        """
        group = self.tables.group
        if self.is_initializing():
            first = self.variable(COLLECTION, _TOKEN, lambda: jnp.array([group.version()], "int32"))
            return zeros_for(Embeddings(first.value, group), ids)
        if not self.has_variable(COLLECTION, _TOKEN):
            raise InputError(
                'apply got no collection "dynemb" for this module; pass what init gave: '
                'model.apply({"params": params, "dynemb": tables}, ...).'
            )
        token = _checked_token(self.get_variable(COLLECTION, _TOKEN), _name(self.path))
        acts = self.get_variable(COLLECTION, _ACTS, ())
        taps = self.get_variable(TAPS, _TAPS_NAME, ())
        state = TableState(Embeddings(token, group), acts, recording=isinstance(taps, _Recording))
        if not train:
            return _state.find(state, ids)
        if not self.is_mutable_collection(COLLECTION):
            raise InputError(
                "a training lookup changes the tables, but their collection is not mutable; write "
                'model.apply(..., mutable="dynemb"), or pass train=False to read rows only.'
            )
        rows, state = _state.train(state, taps, ids, _WORDS)
        self.put_variable(COLLECTION, _TOKEN, state.embeddings.token)
        self.put_variable(COLLECTION, _ACTS, state.acts)
        return rows

    def embeddings(self, variables: Mapping[str, Any]) -> Embeddings:
        """The current Embeddings, for ``dynemb_jax.stats`` and other host calls.

        Args:
            variables: this module's part of the collection "dynemb", e.g.
                ``model.embed.embeddings(tables["embed"])``.
        """
        if not isinstance(variables, Mapping) or _TOKEN not in variables:
            raise InputError(
                f'expected one module\'s part of the collection "dynemb", got {variables!r}; pass '
                'e.g. tables["embed"].'
            )
        return Embeddings(variables[_TOKEN], self.tables.group)

    def variables_of(self, emb: Embeddings) -> dict[str, Any]:
        """This module's part of the collection "dynemb" for another Embeddings of its tables.

        For what ``dynemb_jax.assign``, ``erase`` or ``resync`` returned, e.g.
        ``tables | {"embed": model.embed.variables_of(emb)}``.
        """
        if _state.checked(emb, "pass what the call returned").group is not self.tables.group:
            raise InputError(
                f"variables_of got {emb!r}, which is of other tables than the module's, "
                f"{self.tables!r}; pass an Embeddings that came from them."
            )
        return {_TOKEN: emb.token}


def _name(path: tuple[str, ...]) -> str:
    return "/".join(path) or "DynamicEmbed"


def _checked_token(token: Any, name: str) -> Any:
    if getattr(token, "dtype", None) != np.int32 or getattr(token, "shape", None) != (1,):
        raise StaleStateError(
            f'{name}: the token in the collection "dynemb" is {token!r}, expected int32[1]; an '
            'optimizer or a tree map changed it. Give the optimizer variables["params"] only, and '
            "go on from the collection that it did not touch."
        )
    return token


def _plain(nested: Mapping[str, Any]) -> dict[str, Any]:
    return flax.core.unfreeze(nested if isinstance(nested, flax.core.FrozenDict) else dict(nested))


def _parts(tables: Any) -> dict[tuple[str, ...], dict[str, Any]]:
    """Each module's part of the collection, by path."""
    flat = {}
    if isinstance(tables, Mapping):
        flat = traverse_util.flatten_dict(_plain(tables))
    parts: dict[tuple[str, ...], dict[str, Any]] = {}
    for path, value in flat.items():
        parts.setdefault(path[:-1], {})[path[-1]] = value
    if not parts or any(not {_TOKEN} <= part.keys() <= {_TOKEN, _ACTS} for part in parts.values()):
        got = sorted(map(str, tables)) if isinstance(tables, Mapping) else type(tables).__name__
        raise InputError(
            f'expected the collection "dynemb", got {got}; pass variables["dynemb"] of a model '
            "that holds a DynamicEmbed."
        )
    for path, part in parts.items():
        _checked_token(part[_TOKEN], _name(path))
    return parts


def _nested(parts: dict[tuple[str, ...], Any], like: Any) -> Any:
    flat = {(*path, name): v for path, part in parts.items() for name, v in part.items()}
    nested = traverse_util.unflatten_dict(flat)
    return flax.core.freeze(nested) if isinstance(like, flax.core.FrozenDict) else nested


def _check_applied(parts: dict[tuple[str, ...], dict[str, Any]]) -> None:
    for path, part in parts.items():
        state = TableState(None, part.get(_ACTS, ()))
        _state.check_applied(state, _name(path), _WORDS)


def make_taps(model: nn.Module, variables: Any, *args: Any, **kwargs: Any) -> Any:
    """Zeros for the training lookups that ``model.apply(variables, *args, **kwargs)`` will do.

    Runs the model abstractly, which costs time while tracing and nothing in the compiled step.

    Args:
        model: holds one DynamicEmbed or several.
        variables: with the collection "dynemb".
        *args: as for ``model.apply``.
        **kwargs: as for ``model.apply``; "dynemb" is made mutable.

    Returns:
        The collection "dynemb_taps", to differentiate the loss for.

    Raises:
        StaleStateError: lookups of the step before were never applied, or two modules look up the
            same tables.
    """
    parts = _parts(variables.get(COLLECTION) if isinstance(variables, Mapping) else variables)
    _check_applied(parts)
    mutable = flax.core.scope.union_filters(kwargs.pop("mutable", COLLECTION), COLLECTION)
    record = _nested({path: {_TAPS_NAME: _Recording()} for path in parts}, {})

    groups = {}

    def run(variables: Any) -> dict[tuple[str, ...], Any]:
        _, changed = model.apply({**variables, TAPS: record}, *args, mutable=mutable, **kwargs)
        after = _parts(changed[COLLECTION])
        for path, part in after.items():
            groups.update({_name(path): acts.group for acts in part.get(_ACTS, ())})
        return {path: [acts.rows for acts in part.get(_ACTS, ())] for path, part in after.items()}

    rows = jax.eval_shape(run, dict(variables))
    _state.check_separate(groups)
    taps = {path: {_TAPS_NAME: _state.zeros_like_rows(r)} for path, r in rows.items() if r}
    return _nested(taps, variables[COLLECTION])


def apply_gradients(
    tables: Any, d_taps: Any, *, learning_rate: Rate | None = None, step: Any = None
) -> Any:
    """Updates tables from the gradients of their taps; one update a row.

    Args:
        tables: the collection "dynemb" that ``model.apply(..., mutable="dynemb")`` returned.
        d_taps: gradient of the loss for the collection "dynemb_taps".
        learning_rate: as for :func:`dynemb_jax.apply_gradients`.
        step: likewise.

    Returns:
        The next collection "dynemb".

    Raises:
        InputError: d_taps do not fit the lookups.
    """
    parts = _parts(tables)
    if not isinstance(d_taps, Mapping):
        raise InputError(
            f'expected the gradient for collection "dynemb_taps", got {type(d_taps).__name__}; '
            f"{_WORDS.make_taps}."
        )
    flat = traverse_util.flatten_dict(_plain(d_taps))
    unknown = ["/".join(p) for p in flat if p[-1] != _TAPS_NAME or p[:-1] not in parts]
    if unknown:
        raise InputError(
            f"d_taps hold {sorted(unknown)}, which are no taps of these tables; pass the gradient "
            'for collection "dynemb_taps" only.'
        )
    updated = {}
    for path, part in parts.items():
        acts, updated[path] = part.get(_ACTS, ()), {_TOKEN: part[_TOKEN]}
        emb = Embeddings(part[_TOKEN], acts[0].group) if acts else None
        state = _state.update(
            TableState(emb, acts),
            flat.get((*path, _TAPS_NAME)),
            _name(path),
            _WORDS,
            learning_rate=learning_rate,
            step=step,
        )
        if acts:
            updated[path] = {_TOKEN: state.embeddings.token}
    return _nested(updated, tables)


def discard(tables: Any) -> Any:
    """Forgets the lookups that wait for their update: the step is skipped, inserted keys stay."""
    return _nested({path: {_TOKEN: p[_TOKEN]} for path, p in _parts(tables).items()}, tables)
