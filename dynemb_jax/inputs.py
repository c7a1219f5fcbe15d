"""What a feature's ids may look like, and how they reach the engine."""

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dynemb_jax.errors import InputError
from dynemb_jax.keys import Keys, keys, to_uint64

# Mirrored by Padding of cpp/table/batch.h.
PADDING_NONE, PADDING_LENGTHS, PADDING_MASK, PADDING_SPLITS = 0, 1, 2, 3


@jax.tree_util.register_pytree_node_class
class Padded:
    """Ids in rows of one length, of which only some are meant. A pytree.

    Padding is said here and never by a key: every value of an id is a key.

    Attributes:
        ids: integers or Keys, ``(..., L)``.
        lengths: integers ``(...)``, the first so many ids of each row are meant; or None.
        mask: booleans ``(..., L)``, True where an id is meant; or None.
        weights: numbers ``(..., L)`` for pooling, any sign, with gradients; or None for 1.
    """

    __slots__ = ("ids", "lengths", "mask", "weights")

    def __init__(self, ids: Any, lengths: Any = None, *, mask: Any = None, weights: Any = None):
        """Checks shapes. NumPy int64 ids keep all 64 bits (they become Keys).

        Raises:
            InputError: neither or both of lengths and mask, or shapes that do not fit.
        """
        ids = ids if isinstance(ids, Keys) else as_ids(ids)
        if (lengths is None) == (mask is None):
            raise InputError(
                f"Padded needs either lengths or mask, got {'both' if mask is not None else 'none'}"
                "; pass lengths=(number of ids meant per row) or mask=(True where meant)."
            )
        shape = tuple(ids.shape)
        if not shape:
            raise InputError("Padded needs ids with an axis to pad, got shape (); pass ids (B, L).")
        self.ids = ids
        self.lengths = _checked("Padded: lengths", lengths, shape[:-1], "iu", _PADDED_SHAPES)
        self.mask = _checked("Padded: mask", mask, shape, "b", _PADDED_SHAPES)
        self.weights = _checked("Padded: weights", weights, shape, "fiu", _PADDED_SHAPES)

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """For JAX."""
        return (self.ids, self.lengths, self.mask, self.weights), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: tuple[Any, ...]) -> "Padded":
        """For JAX, which also builds it around things that are no arrays."""
        made = object.__new__(cls)
        made.ids, made.lengths, made.mask, made.weights = children
        return made

    def __repr__(self) -> str:
        shape = getattr(self.ids, "shape", "?")
        padding = "lengths" if self.lengths is not None else "mask"
        weights = ", weights" if self.weights is not None else ""
        return f"Padded(ids{shape}, {padding}{weights})"


_PADDED_SHAPES = "lengths follow ids.shape[:-1], mask and weights follow ids.shape"
_RAGGED_SHAPES = "weights follow ids.shape"


def _checked(name: str, value: Any, shape: tuple[int, ...], kinds: str, rule: str) -> Any:
    if value is None:
        return None
    value = value if isinstance(value, jax.Array | np.ndarray) else np.asarray(value)
    if tuple(value.shape) != shape:
        raise InputError(f"{name} must have shape {shape}, got {tuple(value.shape)}; {rule}.")
    if value.dtype.kind not in kinds:
        wanted = {"iu": "integers", "b": "booleans"}.get(kinds, "numbers")
        raise InputError(f"{name} must be {wanted}, got {value.dtype}; cast it.")
    return value


@jax.tree_util.register_pytree_node_class
class Ragged:
    """Bags of ids of any lengths, one behind the other, in an array of fixed size. A pytree.

    Bag ``b`` is ``ids[row_splits[b]:row_splits[b + 1]]``. Ids at ``row_splits[-1]`` and beyond are
    padding: whatever they are, nothing is looked up for them. The capacity is a shape, so batches
    of one capacity share a compiled program however their lengths differ.

    With a combiner the feature's rows are ``(B, dim)``, one a bag; without one ``(capacity, dim)``,
    one an id, 0 where padded. All of it may have leading axes, the same ones for each array: as
    many ragged batches, each with splits of its own, giving ``(..., B, dim)``.

    Attributes:
        ids: integers or Keys, ``(capacity,)``.
        row_splits: integers ``(B + 1,)`` that begin with 0, never decrease and end within the
            capacity. They are checked where the lookup runs, which raises InputError and changes
            nothing.
        weights: numbers ``(capacity,)`` for pooling, any sign, with gradients; or None for 1.
    """

    __slots__ = ("ids", "row_splits", "weights")

    def __init__(self, ids: Any, row_splits: Any, weights: Any = None):
        """Checks shapes. NumPy int64 ids keep all 64 bits (they become Keys).

        Raises:
            InputError: shapes or types that do not fit.
        """
        ids = ids if isinstance(ids, Keys) else as_ids(ids)
        shape = tuple(ids.shape)
        if not shape:
            raise InputError(
                "Ragged needs ids with an axis, got shape (); pass ids (capacity,) and row_splits "
                "(B + 1,)."
            )
        is_array = isinstance(row_splits, jax.Array | np.ndarray)
        splits = row_splits if is_array else np.asarray(row_splits)
        if splits.ndim != len(shape) or splits.shape[:-1] != shape[:-1] or splits.shape[-1] < 1:
            raise InputError(
                f"Ragged: row_splits must have shape {(*shape[:-1], 'B + 1')}, got "
                f"{tuple(splits.shape)}; pass where each of B bags begins, and at last where the "
                "ids end ([0] if there are no bags)."
            )
        if splits.dtype.kind not in "iu":
            raise InputError(
                f"Ragged: row_splits must be integers, got {splits.dtype}; cast them to int32."
            )
        self.ids = ids
        # Now, since JAX would cut 64 bits down when it enters a jitted function.
        self.row_splits = clipped_int32(splits) if isinstance(splits, np.ndarray) else splits
        self.weights = _checked("Ragged: weights", weights, shape, "fiu", _RAGGED_SHAPES)

    @classmethod
    def from_lists(
        cls, lists: Iterable[Any], *, capacity: int | None = None, weights: Any = None
    ) -> "Ragged":
        """Makes it from host data: one sequence of ids a bag.

        Args:
            lists: sequences or NumPy arrays of integers, of any lengths, 0 included; 64 bits each.
            capacity: places to make, so that batches of different sizes share a compiled program;
                None: exactly as many as there are ids.
            weights: sequences of numbers, as long as those of the ids; or None.

        Returns:
            Keys ``(capacity,)``, int32 row_splits ``(B + 1,)``, float32 weights ``(capacity,)``,
            all NumPy arrays.

        Raises:
            InputError: more ids than the capacity, or weights of other lengths.
        """
        try:
            bags = [bag if isinstance(bag, np.ndarray) else list(bag) for bag in lists]
        except TypeError:
            raise InputError(
                f"Ragged.from_lists needs a sequence of ids per bag, got {lists!r}; write e.g. "
                "Ragged.from_lists([[1, 2], [], [3]])."
            ) from None
        sizes = [len(bag) for bag in bags]
        splits = np.zeros(len(bags) + 1, np.int64)
        np.cumsum(sizes, out=splits[1:])
        total = int(splits[-1])
        capacity = total if capacity is None else capacity
        if isinstance(capacity, bool) or not isinstance(capacity, int | np.integer) or capacity < 0:
            raise InputError(f"capacity must be a whole number, got {capacity!r}; pass e.g. 4096.")
        if total > capacity or capacity >= 1 << 31:
            raise InputError(
                f"Ragged.from_lists got {total} ids in {len(bags)} bags for a capacity of "
                f"{capacity}; pass a capacity of at least as many, below 2**31, or shorter bags."
            )
        padded = np.zeros(capacity, np.uint64)
        padded[:total] = _joined(bags)
        if weights is None:
            return cls(keys(padded), splits.astype(np.int32))
        rows = [np.asarray(row, np.float32).ravel() for row in weights]
        if [len(row) for row in rows] != sizes:
            raise InputError(
                f"Ragged.from_lists got weights for bags of {[len(row) for row in rows]} ids, the "
                f"ids have {sizes}; pass one weight per id."
            )
        numbers = np.zeros(capacity, np.float32)
        numbers[:total] = np.concatenate([np.zeros(0, np.float32), *rows])
        return cls(keys(padded), splits.astype(np.int32), numbers)

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """For JAX."""
        return (self.ids, self.row_splits, self.weights), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: tuple[Any, ...]) -> "Ragged":
        """For JAX, which also builds it around things that are no arrays."""
        made = object.__new__(cls)
        made.ids, made.row_splits, made.weights = children
        return made

    def __repr__(self) -> str:
        shapes = f"ids{getattr(self.ids, 'shape', '?')}, row_splits{_shape(self.row_splits)}"
        return f"Ragged({shapes}{', weights' if self.weights is not None else ''})"


def _shape(array: Any) -> Any:
    return getattr(array, "shape", "?")


def _joined(bags: list[Any]) -> np.ndarray:
    """The ids of all bags, in order, as uint64 (two's complement)."""
    if all(isinstance(bag, np.ndarray) for bag in bags):
        parts = [to_uint64(bag) for bag in bags]
    else:
        parts = [to_uint64(list(itertools.chain.from_iterable(bags)))]
    for part in parts:
        if part.ndim != 1:
            raise InputError(
                f"Ragged.from_lists needs a flat sequence of ids per bag, got one of shape "
                f"{part.shape}; flatten it."
            )
    return np.concatenate([np.zeros(0, np.uint64), *parts])


def as_ids(values: Any) -> Any:
    """An id array the engine can read, or Keys where 64 bits would be lost in JAX.

    Raises:
        InputError: no integers.
    """
    if isinstance(values, Keys):
        return values
    if isinstance(values, jax.Array):
        return _as_word(values)
    if isinstance(values, np.ndarray | np.integer) and values.dtype.kind in "iu":
        return keys(values) if values.dtype.itemsize == 8 else _as_word(np.asarray(values))
    if isinstance(values, np.ndarray) and values.dtype != object:
        return _as_word(values)
    return keys(values)


def _as_word(array: Any) -> Any:
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind not in "iu":
        raise InputError(
            f"ids must be integers, got {array.dtype}; cast them, or hash strings with "
            "dynemb_jax.hash_keys."
        )
    if size < 4:
        return array.astype(np.int32 if kind == "i" else np.uint32)
    return array


def clipped_int32(values: Any) -> Any:
    """Lengths or row splits as int32, what is out of its range at the end of it.

    Cut down to 32 bits they could mean something; clipped they stay as wrong as they are.
    """
    dtype = np.dtype(values.dtype)
    if dtype.itemsize == 8 or dtype == np.uint32:  # others fit, or cannot hold the bounds
        bounds = np.iinfo(np.int32)
        clip = np.clip if isinstance(values, np.ndarray) else jnp.clip
        values = clip(values, bounds.min if dtype.kind == "i" else 0, bounds.max)
    return values.astype(np.int32)


class FeatureIds(NamedTuple):
    """One feature's ids as the primitives take them."""

    ids: jax.Array  # integers, or uint32 pairs where wide
    wide: bool
    padding: int
    pad: jax.Array | None  # int32 lengths or row splits, or bool mask
    weights: jax.Array | None  # float32
    scores: jax.Array | None = None  # uint32 pairs

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the ids."""
        return tuple(self.ids.shape[:-1] if self.wide else self.ids.shape)

    @property
    def num_bags(self) -> int | None:
        """Bags that row splits make of the last axis of the ids; None where there are none."""
        if self.padding != PADDING_SPLITS or self.pad is None:
            return None
        return self.pad.shape[-1] - 1


def normalize(leaf: Any, path: str) -> FeatureIds:
    """Ids of one feature in the engine's form.

    Args:
        leaf: array, Keys, Padded, Ragged or nested sequence of integers.
        path: how the feature is named in messages.

    Raises:
        InputError: naming the feature.
    """
    try:
        ids = as_ids(leaf.ids if isinstance(leaf, Padded | Ragged) else leaf)
    except InputError as error:
        raise InputError(f"feature {path}: {error}") from None
    wide = isinstance(ids, Keys)
    array = jnp.asarray(ids.pairs if isinstance(ids, Keys) else ids)
    if not isinstance(leaf, Padded | Ragged):
        return FeatureIds(array, wide, PADDING_NONE, None, None)
    weights = None if leaf.weights is None else jnp.asarray(leaf.weights).astype(jnp.float32)
    if isinstance(leaf, Ragged):
        pad = jnp.asarray(clipped_int32(leaf.row_splits))
        return FeatureIds(array, wide, PADDING_SPLITS, pad, weights)
    if leaf.lengths is not None:
        pad = jnp.asarray(clipped_int32(leaf.lengths))
        return FeatureIds(array, wide, PADDING_LENGTHS, pad, weights)
    return FeatureIds(array, wide, PADDING_MASK, jnp.asarray(leaf.mask), weights)


def score_pairs(scores: Any, shape: tuple[int, ...], path: str) -> jax.Array:
    """Scores of one feature's ids as uint32 ``(*shape, 2)``; negative ones become 0.

    Args:
        scores: integers like the ids: int32, uint32, 64-bit ones from NumPy or with x64 on, or Keys
            for all 64 bits of a traced score.
        shape: of the ids.
        path: how the feature is named in messages.

    Raises:
        InputError: naming the feature.
    """
    if isinstance(scores, Keys):
        pairs, got = scores.pairs, scores.shape
    else:
        array = scores if isinstance(scores, jax.Array | np.ndarray) else np.asarray(scores)
        if array.dtype.kind not in "iu":
            raise InputError(
                f"feature {path}: scores must be integers, got {array.dtype}; cast them, e.g. with "
                "astype(jnp.uint32)."
            )
        got = tuple(array.shape)
        if array.dtype.kind == "i":
            array = array.clip(0)
        if isinstance(array, np.ndarray):
            pairs = keys(array.astype(np.uint64)).pairs
        else:
            low = array.astype(jnp.uint32)
            wide = array.dtype.itemsize == 8
            high = (array >> 32).astype(jnp.uint32) if wide else jnp.zeros_like(low)
            pairs = jnp.stack([low, high], axis=-1)
    if got != tuple(shape):
        raise InputError(
            f"feature {path}: scores must have the shape of its ids, {tuple(shape)}, got {got}; "
            "pass one score per id, padding included."
        )
    return jnp.asarray(pairs)
