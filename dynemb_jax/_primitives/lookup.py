"""lookup: find or insert.

Results: token, header, per feature rows and index, per table unique_rows, per table that is asked
for its evicted keys these keys and their scores (uint32 pairs) and their number. ``header`` is
int32 [when it was, in the engine's own measure; number of unique rows per table]; ``index`` (shape
of the ids) points into the table's ``unique_rows`` (uint32 pairs), -1 where padded, -2 where
refused.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import ShapedArray

from dynemb_jax._primitives import features as feature_operands
from dynemb_jax._primitives.define import define, token_type
from dynemb_jax._primitives.features import FeaturePlan

HEADER_COUNTS = 1


class LookupResults(NamedTuple):
    """What one lookup gives."""

    token: jax.Array
    header: jax.Array
    rows: tuple[jax.Array, ...]
    indices: tuple[jax.Array, ...]
    unique_rows: tuple[jax.Array, ...]
    evicted: tuple[tuple[jax.Array, jax.Array, jax.Array], ...] = ()  # keys, scores, count


def tables_of(features: Sequence[FeaturePlan]) -> tuple[int, ...]:
    """Tables that the features look up, in order."""
    return tuple(sorted({feature.table for feature in features}))


def asked_tables(features: Sequence[FeaturePlan]) -> tuple[int, ...]:
    """Of them, those that say which keys they evict."""
    return tuple(sorted({feature.table for feature in features if feature.evicted}))


def _abstract_eval(
    token: Any, *operands: Any, features: tuple[FeaturePlan, ...], group: int, plan: Any
) -> list[ShapedArray]:
    del group, plan
    tables = tables_of(features)
    results = [
        token_type(),
        ShapedArray((HEADER_COUNTS + len(tables),), np.dtype(np.int32)),
    ]
    counts = dict.fromkeys(tables, 0)
    groups = feature_operands.split(features, (token, *operands))
    for feature, (ids, *_) in zip(features, groups, strict=True):
        counts[feature.table] += feature_operands.num_ids(feature, ids)
        results += [
            ShapedArray(feature.rows_shape(ids.shape), feature.dtype),
            ShapedArray(feature.index_shape(ids.shape), np.dtype(np.int32)),
        ]
    pairs = {table: ShapedArray((counts[table], 2), np.dtype(np.uint32)) for table in tables}
    results += pairs.values()
    for table in asked_tables(features):
        results += [pairs[table], pairs[table], ShapedArray((1,), np.dtype(np.int32))]
    return results


def _batch(operands: Any, dims: Any, *, features: tuple[FeaturePlan, ...], **params: Any) -> Any:
    folded, mapped = feature_operands.fold("lookup", features, operands, dims)
    results = lookup_p.bind(*folded, features=features, **params)
    out_dims: list[int | None] = [None, None]
    for is_mapped in mapped:
        out_dims += [0, 0] if is_mapped else [None, None]
    return results, out_dims + [None] * (len(results) - len(out_dims))


lookup_p = define("lookup", _abstract_eval, _batch, keep=False)


def lookup(
    group: int, features: tuple[FeaturePlan, ...], token: jax.Array, operands: Sequence[jax.Array]
) -> LookupResults:
    """Looks the features' ids up, inserting what is absent."""
    tables = tables_of(features)
    native = [n for feature in features for n in feature.native()]
    asked = asked_tables(features)
    plan = (len(features), *native, len(tables), *tables, len(asked), *asked)
    results = lookup_p.bind(token, *operands, features=features, group=group, plan=plan)
    paired, rest = results[2 : 2 + 2 * len(features)], results[2 + 2 * len(features) :]
    unique_rows, evicted = rest[: len(tables)], rest[len(tables) :]
    return LookupResults(
        results[0],
        results[1],
        tuple(paired[0::2]),
        tuple(paired[1::2]),
        tuple(unique_rows),
        tuple(zip(evicted[0::3], evicted[1::3], evicted[2::3], strict=True)),
    )
