"""update: gradients of one or several lookups, one step of the optimizer per row.

Rows of tables whose rule XLA runs come moved, as collect gave them out. Result: token.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.core import ShapedArray

from dynemb_jax._primitives import residuals
from dynemb_jax._primitives.collect import Collected, OutsidePlan
from dynemb_jax._primitives.define import define, refuse_mapped, token_type
from dynemb_jax._primitives.residuals import ResidualPlan

_OWN_OPERANDS = ("the Embeddings", "learning_rate", "step")


def _abstract_eval(*_: Any, **__: Any) -> list[ShapedArray]:
    return [token_type()]


def _batch(
    operands: Any,
    dims: Any,
    *,
    lookups: tuple[ResidualPlan, ...],
    moved: tuple[OutsidePlan, ...],
    group: int,
    **_: Any,
) -> Any:
    for position, what in enumerate(_OWN_OPERANDS):
        refuse_mapped("apply_gradients", what, dims[position])
    begin = len(_OWN_OPERANDS)
    end = begin + sum(lookup.num_operands for lookup in lookups)
    size = next(o.shape[d] for o, d in zip(operands, dims, strict=True) if d is not None)
    # What was collected is of all lanes together, so it is not mapped.
    plans, unfolded = residuals.unfold(lookups, operands[begin:end], dims[begin:end], size)
    unfolded = [*operands[:begin], *unfolded, *operands[end:]]
    return [_bind(group, plans, moved, unfolded)], [None]


update_p = define("update", _abstract_eval, _batch, keep=True)


def _bind(
    group: int,
    lookups: tuple[ResidualPlan, ...],
    moved: tuple[OutsidePlan, ...],
    operands: Sequence[jax.Array],
) -> jax.Array:
    plan = (*residuals.native(lookups), len(moved), *(table.table for table in moved))
    return update_p.bind(*operands, lookups=lookups, moved=moved, group=group, plan=plan)[0]


def update(
    group: int,
    lookups: tuple[ResidualPlan, ...],
    operands: Sequence[jax.Array],
    moved: Sequence[tuple[OutsidePlan, Collected]],
) -> jax.Array:
    """Applies gradients; operands are token, learning rates, step and the lookups' own."""
    rows: list[jax.Array] = []
    for _, one in moved:
        rows += [one.unique_rows, one.filled, one.rows, *one.vectors]
        rows += [] if one.scalars is None else [one.scalars]
    return _bind(group, lookups, tuple(table for table, _ in moved), [*operands, *rows])
