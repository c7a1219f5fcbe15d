"""Dynamic embedding tables as a module of Flax NNX.

The training step has three calls: gradient, dense update, table update::

    loss, grads = dynemb_jax.flax.nnx.value_and_grad(loss_fn)(model, batch)
    optimizer.update(model, grads)                         # nnx.Optimizer(..., wrt=nnx.Param)
    dynemb_jax.flax.nnx.apply_gradients(model, grads)
"""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax.core import Tracer

from dynemb_jax.embeddings import Embeddings, create
from dynemb_jax.errors import InputError
from dynemb_jax.flax import _state
from dynemb_jax.flax._state import TableState
from dynemb_jax.updates import Rate

__all__ = [
    "DynamicEmbed",
    "Tables",
    "Taps",
    "apply_gradients",
    "discard",
    "make_taps",
    "trainable",
    "value_and_grad",
]

_WORDS = _state.Words(
    make_taps="differentiate with dynemb_jax.flax.nnx.value_and_grad, or call "
    "dynemb_jax.flax.nnx.make_taps before nnx.value_and_grad(..., argnums=nnx.DiffState(0, "
    "dynemb_jax.flax.nnx.trainable))",
    apply_gradients="dynemb_jax.flax.nnx.apply_gradients(model, grads)",
    discard="dynemb_jax.flax.nnx.discard(model)",
)


class Tables(nnx.Variable):
    """State of tables: the token, and lookups that wait for their update. Not to be optimized."""


class Taps(nnx.Variable):
    """Zeros that receive the gradients of looked-up rows: one nest of rows a lookup."""


trainable = nnx.Any(nnx.Param, Taps)
"""Filter for ``nnx.DiffState``: dense parameters, and the taps of tables."""


class DynamicEmbed(nnx.Module):
    """Rows of ids from tables that grow, in the nest of the features.

    ``model.eval()`` makes its calls read only, ``model.train()`` lets them insert and learn.

    Copies of the module (``nnx.clone``, ``nnx.merge``) share the tables, and one of them at a time
    may train: the others become stale. So it is with two modules made of one Embeddings: make one,
    and call it in both places. The tables live until
    ``dynemb_jax.close(module.embeddings)``, or until no module, Embeddings or compiled function
    refers to them.
    """

    def __init__(self, tables: Any, *, seed: int = 0):
        """Makes new tables, or takes those of an Embeddings.

        Args:
            tables: pytree of FeatureConfig for new tables, or the Embeddings of
                :func:`dynemb_jax.create`, which is then the module's: go on from
                ``module.embeddings``.
            seed: of the first values of rows, for new tables.

        Raises:
            InputError: new tables while tracing (``nnx.jit``, ``nnx.eval_shape``).
            ConfigError: features that cannot work together.
        """
        if isinstance(tables, Embeddings):
            embeddings = _state.checked(tables, "")
        else:
            if isinstance(jax.numpy.zeros(()), Tracer):
                raise InputError(
                    "DynamicEmbed would make its tables while tracing (jit, eval_shape), once more "
                    "for every trace; call emb = dynemb_jax.create(features) outside and write "
                    "DynamicEmbed(emb) inside."
                )
            embeddings = create(tables, seed=seed)
        self.tables = Tables(TableState(embeddings))
        self.taps = Taps(())
        self.deterministic = False  # the name that nnx.Module.eval and train set

    @property
    def embeddings(self) -> Embeddings:
        """The current state of the tables, for ``dynemb_jax.stats`` and other host calls."""
        return self.tables.get_value().embeddings

    def set_embeddings(self, embeddings: Embeddings) -> None:
        """Goes on from what ``dynemb_jax.assign``, ``erase`` or ``resync`` returned.

        Lookups that wait for their update are forgotten.
        """
        self.tables.set_value(TableState(_state.checked(embeddings, "pass what the call returned")))
        self.taps.set_value(())

    def __call__(self, ids: Any, train: bool | None = None) -> Any:
        """Rows of ids; see :func:`dynemb_jax.lookup` for what ids may be.

        Args:
            ids: in the nest of the features.
            train: True inserts absent keys and lets rows learn, inside of a gradient that has taps
                for it. False reads only. None: what ``model.train()`` or ``model.eval()`` said.

        Raises:
            InputError: a training lookup without taps, or ids that do not fit.
            StaleStateError: lookups of before still wait for their update, or the module is an
                old copy.
        """
        state = self.tables.get_value()
        if train is None:
            train = not self.deterministic
        if not train:
            return _state.find(state, ids)
        rows, state = _state.train(state, self.taps.get_value(), ids, _WORDS)
        self.tables.set_value(state)
        return rows


def _states(model: Any) -> dict[tuple[Any, ...], TableState]:
    """States of all DynamicEmbed in a model, by path."""
    found = {
        path[:-1]: variable.get_value()
        for path, variable in nnx.to_flat_state(nnx.state(model, Tables))
    }
    if not found:
        raise InputError(
            f"{type(model).__name__} holds no DynamicEmbed; pass the model that calls it."
        )
    return found


def _set(model: Any, states: dict[tuple[Any, ...], TableState], taps: dict[Any, Any]) -> None:
    flat: list[tuple[Any, nnx.Variable]] = [
        ((*path, "tables"), Tables(state)) for path, state in states.items()
    ]
    flat += [((*path, "taps"), Taps(taps.get(path, ()))) for path in states]
    nnx.update(model, nnx.from_flat_state(flat))


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in path) or "DynamicEmbed"


def make_taps(f: Callable[..., Any], model: Any, *args: Any) -> None:
    """Makes taps in a model for the training lookups that ``f(model, *args)`` will do.

    Runs ``f`` abstractly, which costs time while tracing and nothing in the compiled step. Nothing
    but the taps changes. :func:`value_and_grad` does it by itself.

    Args:
        f: the function that will be differentiated.
        model: holds one DynamicEmbed or several.
        *args: as ``f`` will get them.

    Raises:
        StaleStateError: lookups of the step before were never applied, or two modules look up the
            same tables.
    """
    states = _states(model)
    for path, state in states.items():
        _state.check_applied(state, _name(path), _WORDS)
    graph, variables = nnx.split((model, args))

    def run(variables: Any) -> list[Any]:
        copy, copied_args = nnx.merge(graph, variables)
        recording = {
            path: TableState(state.embeddings, recording=True)
            for path, state in _states(copy).items()
        }
        _set(copy, recording, {})
        f(copy, *copied_args)
        return [[acts.rows for acts in state.acts] for state in _states(copy).values()]

    rows = jax.eval_shape(run, variables)
    looked_up = zip(states.items(), rows, strict=True)
    _state.check_separate({_name(path): s.embeddings.group for (path, s), r in looked_up if r})
    taps = {path: _state.zeros_like_rows(r) for path, r in zip(states, rows, strict=True)}
    _set(model, states, taps)


def value_and_grad(
    f: Callable[..., Any], *, wrt: Any = nnx.Param, has_aux: bool = False
) -> Callable[..., Any]:
    """``nnx.value_and_grad`` for a function whose first argument holds DynamicEmbed.

    Args:
        f: ``f(model, *args)`` to a scalar, or ``(scalar, aux)``.
        wrt: filter of the dense parameters to differentiate for as well.
        has_aux: whether ``f`` returns aux.

    Returns:
        A function that gives the value and gradients: an ``nnx.State`` of the dense parameters,
        for ``nnx.Optimizer.update``, and of the taps, for :func:`apply_gradients`.
    """
    diff = nnx.DiffState(0, nnx.Any(wrt, Taps))

    def wrapped(model: Any, *args: Any) -> Any:
        caught = nnx.to_flat_state(nnx.state(model, nnx.All(wrt, Tables)))
        if caught:
            raise InputError(
                f"wrt={wrt!r} includes the state of tables, which is no parameter; write "
                "wrt=nnx.Param, or nnx.All(your filter, nnx.Not(dynemb_jax.flax.nnx.Tables))."
            )
        make_taps(f, model, *args)
        return nnx.value_and_grad(f, argnums=diff, has_aux=has_aux)(model, *args)

    return wrapped


def apply_gradients(
    model: Any, grads: Any, *, learning_rate: Rate | None = None, step: Any = None
) -> None:
    """Updates the tables of a model from the gradients of its taps; one update a row.

    Args:
        model: the model that was differentiated.
        grads: what :func:`value_and_grad` gave, an ``nnx.State`` that holds the taps.
        learning_rate: as for :func:`dynemb_jax.apply_gradients`.
        step: likewise.

    Raises:
        InputError: grads that lack the taps, or that hold the state of tables.
    """
    states = _states(model)
    if not isinstance(grads, nnx.State):
        raise InputError(
            f"apply_gradients needs the nnx.State of gradients, got {type(grads).__name__}; "
            "pass what value_and_grad returned for the model."
        )
    if nnx.to_flat_state(nnx.filter_state(grads, Tables)):
        raise InputError(
            "grads hold the state of tables, which is no parameter; " + _WORDS.make_taps + "."
        )
    d_taps = {
        path[:-1]: variable.get_value()
        for path, variable in nnx.to_flat_state(nnx.filter_state(grads, Taps))
    }
    updated = {
        path: _state.update(
            state, d_taps.get(path), _name(path), _WORDS, learning_rate=learning_rate, step=step
        )
        for path, state in states.items()
    }
    _set(model, updated, {})


def discard(model: Any) -> None:
    """Forgets the lookups that wait for their update, and the taps: the step is skipped.

    Keys that the lookups inserted stay.
    """
    _set(model, {path: TableState(s.embeddings) for path, s in _states(model).items()}, {})
