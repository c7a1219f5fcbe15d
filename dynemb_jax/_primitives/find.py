"""find: rows of present keys, the missing row of others; changes nothing.

Results: token (the same), per feature rows.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.core import ShapedArray

from dynemb_jax._primitives import features as feature_operands
from dynemb_jax._primitives.define import define, token_type
from dynemb_jax._primitives.features import FeaturePlan


def _abstract_eval(
    token: Any, *operands: Any, features: tuple[FeaturePlan, ...], group: int, plan: Any
) -> list[ShapedArray]:
    del group, plan
    groups = feature_operands.split(features, (token, *operands))
    return [token_type()] + [
        ShapedArray(feature.rows_shape(ids.shape), feature.dtype)
        for feature, (ids, *_) in zip(features, groups, strict=True)
    ]


def _batch(operands: Any, dims: Any, *, features: tuple[FeaturePlan, ...], **params: Any) -> Any:
    folded, mapped = feature_operands.fold("lookup(train=False)", features, operands, dims)
    results = find_p.bind(*folded, features=features, **params)
    return results, [None, *(0 if is_mapped else None for is_mapped in mapped)]


find_p = define("find", _abstract_eval, _batch, keep=False)


def find(
    group: int, features: tuple[FeaturePlan, ...], token: jax.Array, operands: Sequence[jax.Array]
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Looks the features' ids up without inserting; returns (token, rows per feature)."""
    plan = (len(features), *(n for feature in features for n in feature.native()))
    token, *rows = find_p.bind(token, *operands, features=features, group=group, plan=plan)
    return token, tuple(rows)
