"""update: gradients of one or several lookups, one step of the optimizer per row.

Result: token.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.core import ShapedArray

from dynemb_jax._primitives.define import define, refuse_mapped, to_front, token_type


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
        """As ReadResidual in cpp/ffi/update_handler.cc reads it."""
        fields = [int(n) for feature in self.features for n in feature]
        return (len(self.tables), *self.tables, len(self.features), *fields)

    @property
    def num_operands(self) -> int:
        """Header, unique_rows per table; per feature index, row splits, grads, weights."""
        counts = [2 + feature.weighted + feature.ragged for feature in self.features]
        return 1 + len(self.tables) + sum(counts)


def _abstract_eval(*_: Any, **__: Any) -> list[ShapedArray]:
    return [token_type()]


def _batch(operands: Any, dims: Any, *, lookups: tuple[ResidualPlan, ...], **params: Any) -> Any:
    for position, what in enumerate(("the Embeddings", "learning_rate", "step")):
        refuse_mapped("apply_gradients", what, dims[position])
    size = next(o.shape[d] for o, d in zip(operands, dims, strict=True) if d is not None)
    # Every lane is a lookup of its own in one exact update.
    unfolded: list[Any] = list(operands[:3])
    plans: list[ResidualPlan] = []
    at = 3
    for lookup in lookups:
        end = at + lookup.num_operands
        lanes = [to_front(o, d, size) for o, d in zip(operands[at:end], dims[at:end], strict=True)]
        for lane in range(size):
            unfolded.extend(operand[lane] for operand in lanes)
            plans.append(lookup)
        at = end
    return [update(params["group"], tuple(plans), unfolded)], [None]


update_p = define("update", _abstract_eval, _batch, keep=True)


def update(
    group: int, lookups: tuple[ResidualPlan, ...], operands: Sequence[jax.Array]
) -> jax.Array:
    """Applies gradients; operands are token, learning rates, step and the lookups' own."""
    plan = (len(lookups), *(n for lookup in lookups for n in lookup.native()))
    return update_p.bind(*operands, lookups=lookups, group=group, plan=plan)[0]
