"""Operands that collect and update share: what lookups left, with gradients."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from dynemb_jax._primitives.define import to_front


class GradientPlan(NamedTuple):
    """Static part of one feature's gradient; hashable."""

    table: int
    combiner: int
    weighted: bool
    ragged: bool  # pooled by row splits


class ResidualPlan(NamedTuple):
    """Static part of one lookup's share in an update; hashable."""

    tables: tuple[int, ...]
    features: tuple[GradientPlan, ...]

    def native(self) -> tuple[int, ...]:
        """As ReadResidual in cpp/ffi/residuals.cc reads it."""
        fields = [int(n) for feature in self.features for n in feature]
        return (len(self.tables), *self.tables, len(self.features), *fields)

    @property
    def num_operands(self) -> int:
        """Header, unique_rows per table; per feature index, row splits, grads, weights."""
        counts = [2 + feature.weighted + feature.ragged for feature in self.features]
        return 1 + len(self.tables) + sum(counts)


def native(lookups: Sequence[ResidualPlan]) -> tuple[int, ...]:
    """As ReadResiduals in cpp/ffi/residuals.cc reads it."""
    return (len(lookups), *(n for lookup in lookups for n in lookup.native()))


def capacity(lookups: Sequence[ResidualPlan], operands: Sequence[Any], table: int) -> int:
    """Room for unique rows of a table that the lookups have together."""
    rows, at = 0, 0
    for lookup in lookups:
        for position, of in enumerate(lookup.tables):
            if of == table:
                rows += operands[at + 1 + position].shape[0]
        at += lookup.num_operands
    return rows


def unfold(
    lookups: Sequence[ResidualPlan], operands: Sequence[Any], dims: Sequence[int | None], size: int
) -> tuple[tuple[ResidualPlan, ...], list[Any]]:
    """Makes every lane of mapped lookups a lookup of its own, in one exact update."""
    unfolded: list[Any] = []
    plans: list[ResidualPlan] = []
    at = 0
    for lookup in lookups:
        end = at + lookup.num_operands
        lanes = [to_front(o, d, size) for o, d in zip(operands[at:end], dims[at:end], strict=True)]
        for lane in range(size):
            unfolded.extend(operand[lane] for operand in lanes)
            plans.append(lookup)
        at = end
    return tuple(plans), unfolded
