"""Operands that lookup and find share: the ids of features."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dynemb_jax._primitives.define import refuse_mapped, to_front
from dynemb_jax.inputs import PADDING_NONE

COMBINER_CODES = {None: 0, "sum": 1, "mean": 2, "sqrtn": 3}


class FeaturePlan(NamedTuple):
    """Static part of one feature of a call; hashable."""

    table: int
    dim: int
    combiner: int
    wide: bool
    padding: int
    weighted: bool
    scored: bool
    num_bags: int | None = None  # that row splits make of the last axis of the ids
    evicted: bool = False  # the keys that its table evicts are asked for
    dtype: np.dtype[Any] = np.dtype(np.float32)  # of the rows that come back, or the table's own

    def native(self) -> tuple[int, ...]:
        """As ReadFeatures in cpp/ffi/frame.cc reads it."""
        flags = (int(self.weighted), int(self.scored))
        return (self.table, self.combiner, int(self.wide), self.padding, *flags)

    @property
    def num_operands(self) -> int:
        """Ids, then lengths, mask or row splits, then weights, then scores (uint32 pairs)."""
        return 1 + (self.padding != PADDING_NONE) + self.weighted + self.scored

    def index_shape(self, ids_shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the ids themselves."""
        return tuple(ids_shape[:-1] if self.wide else ids_shape)

    def rows_shape(self, ids_shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the rows that come back."""
        shape = self.index_shape(ids_shape)
        if not self.combiner:
            return (*shape, self.dim)
        bags = () if self.num_bags is None else (self.num_bags,)
        return (*shape[:-1], *bags, self.dim)


def split(features: Sequence[FeaturePlan], operands: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Groups the operands after the token by feature."""
    groups, at = [], 1
    for feature in features:
        groups.append(tuple(operands[at : at + feature.num_operands]))
        at += feature.num_operands
    return groups


def num_ids(feature: FeaturePlan, ids: Any) -> int:
    """Ids of one feature, padding included."""
    return math.prod(feature.index_shape(ids.shape))


def fold(
    verb: str, features: Sequence[FeaturePlan], operands: Sequence[Any], dims: Sequence[int | None]
) -> tuple[list[Any], list[bool]]:
    """Moves the mapped axis of each mapped feature to the front of its ids: a larger batch.

    Returns:
        The operands, and for each feature whether it is mapped.
    """
    refuse_mapped(verb, "the Embeddings", dims[0])
    size = next(o.shape[d] for o, d in zip(operands, dims, strict=True) if d is not None)
    folded, mapped = [operands[0]], []
    grouped = zip(split(features, operands), split(features, dims), strict=True)
    for group, group_dims in grouped:
        is_mapped = any(d is not None for d in group_dims)
        mapped.append(is_mapped)
        if is_mapped:
            group = tuple(to_front(o, d, size) for o, d in zip(group, group_dims, strict=True))
        folded.extend(group)
    return folded, mapped
