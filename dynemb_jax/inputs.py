"""What a feature's ids may look like, and how they reach the engine."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dynemb_jax.errors import InputError
from dynemb_jax.keys import Keys, keys

PADDING_NONE, PADDING_LENGTHS, PADDING_MASK = 0, 1, 2


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
        self.lengths = _checked("lengths", lengths, shape[:-1], "iu")
        self.mask = _checked("mask", mask, shape, "b")
        self.weights = _checked("weights", weights, shape, "fiu")

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


def _checked(name: str, value: Any, shape: tuple[int, ...], kinds: str) -> Any:
    if value is None:
        return None
    value = value if isinstance(value, jax.Array | np.ndarray) else np.asarray(value)
    if tuple(value.shape) != shape:
        raise InputError(
            f"Padded: {name} must have shape {shape}, got {tuple(value.shape)}; lengths follow "
            "ids.shape[:-1], mask and weights follow ids.shape."
        )
    if value.dtype.kind not in kinds:
        wanted = {"iu": "integers", "b": "booleans"}.get(kinds, "numbers")
        raise InputError(f"Padded: {name} must be {wanted}, got {value.dtype}; cast it.")
    return value


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


def clipped_lengths(lengths: Any, row_length: int) -> Any:
    """Lengths as int32; clipped before 64 bits are cut, so that what is out of range stays so."""
    if lengths.dtype.itemsize >= 4:  # narrower ones may not hold the bounds, and need none
        clip = np.clip if isinstance(lengths, np.ndarray) else jnp.clip
        lengths = clip(lengths, -1 if lengths.dtype.kind == "i" else 0, row_length + 1)
    return lengths.astype(np.int32)


class FeatureIds(NamedTuple):
    """One feature's ids as the primitives take them."""

    ids: jax.Array  # integers, or uint32 pairs where wide
    wide: bool
    padding: int
    pad: jax.Array | None  # int32 lengths or bool mask
    weights: jax.Array | None  # float32
    scores: jax.Array | None = None  # uint32 pairs

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the ids."""
        return tuple(self.ids.shape[:-1] if self.wide else self.ids.shape)


def normalize(leaf: Any, path: str) -> FeatureIds:
    """Ids of one feature in the engine's form.

    Args:
        leaf: array, Keys, Padded or nested sequence of integers.
        path: how the feature is named in messages.

    Raises:
        InputError: naming the feature.
    """
    try:
        padded = leaf if isinstance(leaf, Padded) else None
        ids = as_ids(leaf.ids if isinstance(leaf, Padded) else leaf)
    except InputError as error:
        raise InputError(f"feature {path}: {error}") from None
    wide = isinstance(ids, Keys)
    array = jnp.asarray(ids.pairs if isinstance(ids, Keys) else ids)
    if padded is None:
        return FeatureIds(array, wide, PADDING_NONE, None, None)
    weights = None if padded.weights is None else jnp.asarray(padded.weights).astype(jnp.float32)
    if padded.lengths is not None:
        row_length = (array.shape[:-1] if wide else array.shape)[-1]
        pad = jnp.asarray(clipped_lengths(padded.lengths, row_length))
        return FeatureIds(array, wide, PADDING_LENGTHS, pad, weights)
    return FeatureIds(array, wide, PADDING_MASK, jnp.asarray(padded.mask), weights)


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
