"""collect: gradients summed per row, with the rows and their state, for a rule that XLA runs.

Results: token (the same), then per collected table unique_rows (uint32 pairs), filled, grads, rows,
state vectors and, where a row has numbers, these as int32 bits.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import ShapedArray

from dynemb_jax._primitives import residuals
from dynemb_jax._primitives.define import define, refuse_mapped, token_type
from dynemb_jax._primitives.residuals import ResidualPlan


class OutsidePlan(NamedTuple):
    """Static part of one table whose rule XLA runs; hashable."""

    table: int
    dim: int
    vectors: int
    scalars: int

    @property
    def num_state(self) -> int:
        """State vectors, and all numbers in one."""
        return self.vectors + (self.scalars > 0)


class Collected(NamedTuple):
    """Rows of one table: first the unique ones, then padding, ``capacity`` in all."""

    unique_rows: jax.Array  # uint32[capacity, 2]
    filled: jax.Array  # int32[1]: how many are unique ones
    grads: jax.Array  # float32[capacity, dim]
    rows: jax.Array  # float32[capacity, dim]
    vectors: tuple[jax.Array, ...]  # float32[capacity, dim]
    scalars: jax.Array | None  # int32[capacity, scalars], as bits


def _abstract_eval(
    token: Any,
    *operands: Any,
    lookups: tuple[ResidualPlan, ...],
    tables: tuple[OutsidePlan, ...],
    **_: Any,
) -> list[ShapedArray]:
    del token
    results = [token_type()]
    for table in tables:
        capacity = residuals.capacity(lookups, operands, table.table)
        row = ShapedArray((capacity, table.dim), np.dtype(np.float32))
        results.append(ShapedArray((capacity, 2), np.dtype(np.uint32)))
        results.append(ShapedArray((1,), np.dtype(np.int32)))
        results += [row] * (2 + table.vectors)
        if table.scalars:
            results.append(ShapedArray((capacity, table.scalars), np.dtype(np.int32)))
    return results


def _batch(
    operands: Any, dims: Any, *, lookups: tuple[ResidualPlan, ...], group: int, **params: Any
) -> Any:
    refuse_mapped("apply_gradients", "the Embeddings", dims[0])
    size = next(o.shape[d] for o, d in zip(operands, dims, strict=True) if d is not None)
    plans, unfolded = residuals.unfold(lookups, operands[1:], dims[1:], size)
    results = _bind(group, plans, params["tables"], [operands[0], *unfolded])
    return results, [None] * len(results)


collect_p = define("collect", _abstract_eval, _batch, keep=False)


def _bind(
    group: int,
    lookups: tuple[ResidualPlan, ...],
    tables: tuple[OutsidePlan, ...],
    operands: Sequence[jax.Array],
) -> list[jax.Array]:
    plan = (*residuals.native(lookups), len(tables), *(table.table for table in tables))
    return collect_p.bind(*operands, lookups=lookups, tables=tables, group=group, plan=plan)


def collect(
    group: int,
    lookups: tuple[ResidualPlan, ...],
    tables: tuple[OutsidePlan, ...],
    operands: Sequence[jax.Array],
) -> tuple[jax.Array, list[Collected]]:
    """Returns (token, what was collected per table); operands are token and the lookups' own."""
    token, *results = _bind(group, lookups, tables, operands)
    collected, at = [], 0
    for table in tables:
        unique_rows, filled, grads, rows = results[at : at + 4]
        state = results[at + 4 : at + 4 + table.num_state]
        at += 4 + table.num_state
        vectors = tuple(state[: table.vectors])
        scalars = state[-1] if table.scalars else None
        collected.append(Collected(unique_rows, filled, grads, rows, vectors, scalars))
    return token, collected
