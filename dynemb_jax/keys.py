"""Keys of 64 bits on their way through JAX.

JAX turns int64 arrays into int32 without a word unless x64 is enabled, so 64-bit keys travel as
pairs of uint32 inside a :class:`Keys`, a type of its own since a plain ``uint32[..., 2]`` could as
well be ids in rows of two.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np
import xxhash
from jax.core import Tracer

from dynemb_jax.errors import InputError

_INTEGERS = (int, np.integer)


@jax.tree_util.register_pytree_node_class
class Keys:
    """64-bit keys as pairs: ``pairs`` is uint32 ``[..., 2]``, low word first. A pytree."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: Any):
        """Wraps pairs that exist already; :func:`keys` makes them from integers."""
        if pairs.ndim < 1 or pairs.shape[-1] != 2 or pairs.dtype != np.uint32:
            raise InputError(
                f"Keys needs uint32 pairs of shape (..., 2), got {pairs.dtype}{pairs.shape}; "
                "make them with dynemb_jax.keys(array_of_integers)."
            )
        self.pairs = pairs

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the keys, without the axis of the pairs."""
        return tuple(self.pairs.shape[:-1])

    @property
    def ndim(self) -> int:
        """Number of axes of the keys."""
        return len(self.shape)

    def __getitem__(self, index: Any) -> "Keys":
        """Keys at an index of the keys' own axes."""
        index = index if isinstance(index, tuple) else (index,)
        self._check_bounds(index)
        if any(i is Ellipsis for i in index):
            return Keys(self.pairs[(*index, slice(None))])
        return Keys(self.pairs[index])

    def _check_bounds(self, index: tuple[Any, ...]) -> None:
        # JAX arrays clamp: another key would come, and a loop would never end.
        for axis, i in enumerate(index):
            if not isinstance(i, int | np.integer | slice) or isinstance(i, bool):
                return
            if axis >= self.ndim or isinstance(i, slice):
                continue
            if not -self.shape[axis] <= i < self.shape[axis]:
                raise IndexError(
                    f"index {i} is out of bounds for axis {axis} of Keys of shape {self.shape}."
                )

    def __iter__(self) -> Iterator["Keys"]:
        """Keys along the first axis."""
        return (self[i] for i in range(len(self)))

    def __len__(self) -> int:
        """Length of the first axis."""
        if not self.shape:
            raise TypeError("len() of a single key; its shape is ().")
        return self.shape[0]

    def reshape(self, *shape: int) -> "Keys":
        """The same keys in another shape."""
        return Keys(self.pairs.reshape(*shape, 2))

    def __repr__(self) -> str:
        is_array = hasattr(self.pairs, "shape")  # else a tree of something about arrays
        return f"Keys(shape={self.shape})" if is_array else f"Keys({self.pairs!r})"

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        """For JAX."""
        return (self.pairs,), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: tuple[Any]) -> "Keys":
        """For JAX, which also builds it around things that are no arrays."""
        made = object.__new__(cls)
        made.pairs = children[0]
        return made


def to_uint64(values: Any) -> np.ndarray:
    """Integers as uint64 of the same bits (two's complement), in the same shape.

    Raises:
        InputError: not integers, or integers beyond 64 bits.
    """
    if isinstance(values, Tracer) or (
        isinstance(values, Keys) and isinstance(values.pairs, Tracer)
    ):
        raise InputError(
            "keys of a host call must be concrete, got traced ones; call it outside of jit."
        )
    if isinstance(values, Keys):
        pairs = np.ascontiguousarray(np.asarray(values.pairs))
        return pairs.view(np.dtype("<u8")).reshape(values.shape)
    array = values if isinstance(values, np.ndarray | jax.Array) else _from_sequence(values)
    array = np.asarray(array)
    if array.dtype.kind not in "iu":
        raise InputError(
            f"keys must be integers, got {array.dtype}; hash strings with dynemb_jax.hash_keys, "
            "cast numbers with .astype(numpy.int64)."
        )
    return array.astype(np.int64 if array.dtype.kind == "i" else np.uint64).view(np.uint64)


def _from_sequence(values: Any) -> np.ndarray:
    """Integers of Python, which may mix signs and reach to 2**64, as 64-bit words."""
    try:
        array = np.asarray(values)
    except (OverflowError, ValueError):
        array = np.asarray(None)
    if array.dtype.kind in "iu":
        return array
    try:
        array = np.asarray(values, dtype=object)
    except ValueError as error:
        raise InputError(f"keys must form an array, got {values!r}: {error}.") from None
    flat = array.ravel()
    wrong = {type(v).__name__ for v in flat if isinstance(v, bool) or not isinstance(v, _INTEGERS)}
    if wrong & {"list", "tuple"}:
        raise InputError(
            f"keys must form an array, got rows of different lengths, {values!r}; write "
            "dynemb_jax.Ragged.from_lists(rows), or pad them for dynemb_jax.Padded."
        )
    if wrong:
        raise InputError(
            f"keys must be integers, got {', '.join(sorted(wrong))}; hash strings with "
            "dynemb_jax.hash_keys."
        )
    if any(not -(1 << 63) <= int(v) < 1 << 64 for v in flat):
        raise InputError(
            f"keys must fit into 64 bits, got {values!r}; hash wider values, e.g. with "
            "dynemb_jax.hash_keys."
        )
    return np.array([int(v) % (1 << 64) for v in flat], np.uint64).reshape(array.shape)


def keys(values: Any) -> Keys:
    """Makes keys that carry all 64 bits, also with JAX's x64 mode off.

    Every 64-bit value is a legal key. Negative numbers are their two's complement: ``-1`` is the
    key of all ones, in any integer type.

    Args:
        values: NumPy array, or nested sequence, of integers in [-2**63, 2**64), any shape.

    Returns:
        Keys of the shape of ``values``, in host memory (no copy of a contiguous int64 array).

    Raises:
        InputError: not integers, or beyond 64 bits.
    """
    if isinstance(values, Keys):
        return values
    if isinstance(values, Tracer):
        raise InputError(
            "dynemb_jax.keys works on concrete integers, got a traced array; call it outside of "
            "jit and pass the Keys in (JAX has already cut int64 to int32 inside)."
        )
    words = to_uint64(values).astype("<u8", copy=False)
    pairs = np.ascontiguousarray(words).view(np.dtype("<u4")).reshape(*words.shape, 2)
    return Keys(pairs.astype(np.uint32, copy=False))


def hash_keys(values: Iterable[str | bytes] | np.ndarray | str | bytes) -> Keys:
    """Hashes strings to keys with xxh3_64 of their UTF-8 bytes.

    Args:
        values: a string, a sequence or an array of ``str`` or ``bytes``, any shape.

    Returns:
        Keys of the same shape. Equal strings give equal keys, in every process; two different
        ones meet with probability 2**-64 a pair.

    Raises:
        InputError: something that is neither str nor bytes.
    """
    array = values if isinstance(values, np.ndarray) else np.array(values, dtype=object)
    flat = array.ravel()
    digests = np.empty(flat.shape, np.uint64)
    for position, value in enumerate(flat):
        if isinstance(value, str):
            value = value.encode()
        if not isinstance(value, bytes):
            raise InputError(
                f"hash_keys takes str or bytes, got {type(value).__name__} at position {position}; "
                "pass integers to dynemb_jax.keys instead."
            )
        digests[position] = xxhash.xxh3_64_intdigest(value)
    return keys(digests.reshape(array.shape))
