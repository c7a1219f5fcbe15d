"""What a module keeps between calls, and the two things that happen to it: lookup and update.

A training lookup adds its Activations to the state; the update applies and removes them. How many
there are is static, so a forgotten update is found while tracing. Lookup number i takes tap
number i: taps are made beforehand by running the model abstractly on a *recording* state.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dynemb_jax.embeddings import Activations, Embeddings
from dynemb_jax.errors import InputError, StaleStateError
from dynemb_jax.lookups import lookup
from dynemb_jax.updates import Rate, apply_gradients


class Words(NamedTuple):
    """How messages name things: linen and nnx call the same things differently."""

    make_taps: str
    apply_gradients: str
    discard: str


@jax.tree_util.register_pytree_with_keys_class
class TableState:
    """Embeddings of a module and the lookups that wait for their update. A pytree.

    Attributes:
        embeddings: the current Embeddings.
        acts: Activations of training lookups since the last update, oldest first.
        recording: whether this is the abstract run that finds out how many lookups there are.
    """

    __slots__ = ("acts", "embeddings", "recording")

    def __init__(
        self, embeddings: Any, acts: tuple[Activations, ...] = (), *, recording: bool = False
    ):
        """Plain fields."""
        self.embeddings = embeddings
        self.acts = acts
        self.recording = recording

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], bool]:
        """For JAX."""
        key = jax.tree_util.GetAttrKey
        return (
            (key("embeddings"), self.embeddings),
            (key("acts"), self.acts),
        ), self.recording

    def tree_flatten(self) -> tuple[tuple[Any, ...], bool]:
        """For JAX."""
        return (self.embeddings, self.acts), self.recording

    @classmethod
    def tree_unflatten(cls, recording: bool, children: tuple[Any, ...]) -> "TableState":
        """For JAX."""
        return cls(*children, recording=recording)

    def __repr__(self) -> str:
        waiting = f", {len(self.acts)} waiting for their update" if self.acts else ""
        return f"TableState({self.embeddings!r}{waiting})"


def find(state: TableState, ids: Any) -> Any:
    """Rows of ids, nothing changed."""
    acts, _ = lookup(state.embeddings, ids, train=False)
    return acts.rows


def train(state: TableState, taps: Sequence[Any], ids: Any, words: Words) -> tuple[Any, TableState]:
    """Rows of ids, absent keys inserted, and the next state.

    Raises:
        StaleStateError: earlier lookups still wait for their update.
        InputError: there are no taps, so that nothing would learn.
    """
    turn, tap = len(state.acts), None
    if not state.recording:
        if turn >= len(taps):
            _refuse(turn, len(taps), words)
        tap = taps[turn]
    acts, embeddings = lookup(state.embeddings, ids, taps=tap)
    return acts.rows, TableState(embeddings, (*state.acts, acts), recording=state.recording)


def _refuse(turn: int, num_taps: int, words: Words) -> None:
    if turn:
        raise StaleStateError(
            f"a training lookup begins while {turn} of before still wait for their update (there "
            f"are taps for {num_taps}); call {words.apply_gradients} after each gradient, or "
            f"{words.discard} to go on without the update."
        )
    raise InputError(
        f"a training lookup without taps, so its rows would get no gradient; {words.make_taps}, or "
        "pass train=False to read rows only."
    )


def check_applied(state: TableState, path: str, words: Words) -> None:
    """Raises StaleStateError if lookups of the step before still wait for their update."""
    if state.acts:
        raise StaleStateError(
            f"{path}: a training step begins, but {len(state.acts)} lookups of the one before were "
            f"never applied; call {words.apply_gradients} after each gradient, or "
            f"{words.discard} to go on without the update."
        )


def check_separate(groups: Mapping[str, Any]) -> None:
    """Raises StaleStateError if two modules look up the same tables in one step.

    Args:
        groups: the group of tables of each module that looks up for training, by its name.
    """
    first: dict[Any, str] = {}
    for name, group in groups.items():
        other = first.setdefault(group, name)
        if other != name:
            raise StaleStateError(
                f"{other} and {name} are two DynamicEmbed on one Embeddings ({group!r}), and a "
                "training lookup of one leaves the other with a state that is no longer current; "
                "make one DynamicEmbed and call it in both places, or give each tables of its own "
                "with dynemb_jax.create."
            )


def zeros_like_rows(rows: Sequence[Any]) -> tuple[Any, ...]:
    """Taps for lookups that gave rows of these shapes."""
    return jax.tree.map(lambda row: jnp.zeros(row.shape, row.dtype), tuple(rows))


def update(
    state: TableState,
    d_taps: Any,
    path: str,
    words: Words,
    *,
    learning_rate: Rate | None,
    step: Any,
) -> TableState:
    """Applies the gradients of the taps to the lookups that wait; one exact update over all.

    Raises:
        InputError: there are no gradients, or those of another number of lookups.
    """
    if not state.acts and not d_taps:
        return state
    count = len(d_taps) if isinstance(d_taps, tuple | list) else None
    if count != len(state.acts):
        got = "no gradient of taps" if count is None else f"gradients of {count} taps"
        raise InputError(
            f"{path}: {len(state.acts)} training lookups wait for their update, got {got}; "
            f"{words.make_taps}."
        )
    embeddings = apply_gradients(
        state.embeddings,
        list(state.acts),
        list(d_taps),
        learning_rate=learning_rate,
        step=step,
    )
    return TableState(embeddings)


def checked(embeddings: Any, instead: str) -> Embeddings:
    """The Embeddings, or InputError that says what to write."""
    if not isinstance(embeddings, Embeddings):
        raise InputError(
            f"DynamicEmbed needs the Embeddings of dynemb_jax.create, got "
            f"{type(embeddings).__name__}; {instead}."
        )
    embeddings.group.check_open()
    return embeddings
