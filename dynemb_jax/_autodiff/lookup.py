"""Derivatives of lookup with respect to weights and taps.

With v_i = W[k_i] the looked-up rows, a pooled output is y = p(v, w), p one of sum, mean, sqrtn
over a bag, and y = v without pooling. W lives in the engine, so its cotangent is not an array:
  ct_W reaches the table through apply_gradients, from ct_y, which the user differentiates for
       explicitly, or receives through a tap: y = p(v, w) + tap, hence ct_tap = ct_y.
  ct_w is the VJP of p at (v, w), taken by JAX of the pooling below. It needs v, so where lookup is
       differentiated, weighted features fetch unpooled rows and pool them here.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dynemb_jax._primitives.features import COMBINER_CODES, FeaturePlan
from dynemb_jax._primitives.find import find
from dynemb_jax._primitives.lookup import LookupResults, lookup
from dynemb_jax.inputs import PADDING_MASK, PADDING_SPLITS, FeatureIds

_CANCELLED = 2.0**-20  # kCancelled of core/pool.h
_SUM, _MEAN, _SQRTN = (COMBINER_CODES[name] for name in ("sum", "mean", "sqrtn"))

# One feature: (ids; lengths, mask, row splits or None; scores or None), its weights or None, its
# tap or None.
Ids = tuple[jax.Array, jax.Array | None, jax.Array | None]
Verb = Callable[..., Any]


Reduce = Callable[[jax.Array], jax.Array]  # (..., L, n) to sums over each bag, (..., n)


def pool(
    rows: jax.Array, weights: jax.Array, valid: jax.Array, combiner: int, reduce: Reduce
) -> jax.Array:
    """Pools rows (..., L, dim) with weights (..., L) where valid; the formulas of core/pool.h."""
    used = jnp.where(valid, weights, 0.0)[..., None]
    total = reduce(used * jnp.where(valid[..., None], rows, 0.0))
    if combiner == _SUM:
        return total
    if combiner == _MEAN:
        divisor = reduce(used)
        cancelled = jnp.abs(divisor) <= _CANCELLED * reduce(jnp.abs(used))
        divisor = jnp.where(cancelled, 0.0, divisor)
    else:
        squares = reduce(used * used)
        # The inner where keeps sqrt's infinite slope at 0 out of the gradient.
        divisor = jnp.where(squares == 0, 0.0, jnp.sqrt(jnp.where(squares == 0, 1.0, squares)))
    return jnp.where(divisor == 0, 0.0, total / jnp.where(divisor == 0, 1.0, divisor))


def _pool_as(plan: FeaturePlan, rows: jax.Array, weights: jax.Array, **bags: Any) -> jax.Array:
    return pool(rows, weights, combiner=plan.combiner, **bags).astype(plan.dtype)


def _sum_last(terms: jax.Array) -> jax.Array:
    return jnp.sum(terms, axis=-2)


def _sum_bags(terms: jax.Array, splits: jax.Array) -> jax.Array:
    """Sums of terms (..., capacity, n) over bags given by splits (..., B + 1): (..., B, n)."""
    lead, num_bags = splits.shape[:-1], splits.shape[-1] - 1
    capacity, columns = terms.shape[-2:]

    def one(terms: jax.Array, splits: jax.Array) -> jax.Array:
        places = jnp.arange(capacity, dtype=splits.dtype)
        bags = jnp.searchsorted(splits, places, side="right") - 1
        # One bag more takes the padding.
        sums = jax.ops.segment_sum(terms, bags, num_bags + 1, indices_are_sorted=True)
        return sums[:num_bags]

    groups = math.prod(lead)
    flat = terms.reshape(groups, capacity, columns), splits.reshape(groups, num_bags + 1)
    return jax.vmap(one)(*flat).reshape(*lead, num_bags, columns)


def _valid(plan: FeaturePlan, ids: Ids) -> jax.Array:
    array, pad, _ = ids
    shape = plan.index_shape(array.shape)
    if pad is None:
        return jnp.ones(shape, bool)
    if plan.padding == PADDING_MASK:
        return pad
    ends = pad[..., -1] if plan.padding == PADDING_SPLITS else pad
    position = jax.lax.broadcasted_iota(jnp.int32, shape, len(shape) - 1)
    return position < jnp.broadcast_to(jnp.expand_dims(ends, -1), shape)


def _operands(
    ids: Sequence[Ids], weights: Sequence[jax.Array | None], plans: Sequence[FeaturePlan]
) -> list[jax.Array]:
    flat: list[jax.Array] = []
    for (array, pad, scores), weight, plan in zip(ids, weights, plans, strict=True):
        flat.append(array)
        if pad is not None:
            flat.append(pad)
        if plan.weighted and weight is not None:
            flat.append(weight)
        if scores is not None:
            flat.append(scores)
    return flat


def _run(
    verb: Verb, group: int, plans: tuple[FeaturePlan, ...], token: Any, ids: Any, weights: Any
) -> LookupResults:
    results = verb(group, plans, token, _operands(ids, weights, plans))
    if isinstance(results, LookupResults):
        return results
    token, rows = results
    return LookupResults(token, jnp.zeros((0,), jnp.int32), rows, (), ())


def _is_pooled_by_jax(plan: FeaturePlan) -> bool:
    return plan.weighted and plan.combiner != COMBINER_CODES[None]


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _lookup(
    verb: Verb,
    group: int,
    plans: tuple[FeaturePlan, ...],
    token: jax.Array,
    ids: tuple[Ids, ...],
    weights: tuple[jax.Array | None, ...],
    taps: tuple[jax.Array | None, ...],
) -> LookupResults:
    del taps  # zeros by contract; XLA drops them
    return _run(verb, group, plans, token, ids, weights)


def _lookup_fwd(
    verb: Verb,
    group: int,
    plans: tuple[FeaturePlan, ...],
    token: Any,
    ids: Any,
    weights: Any,
    taps: Any,
) -> tuple[LookupResults, Any]:
    raw = tuple(
        plan._replace(combiner=COMBINER_CODES[None], weighted=False, dtype=jnp.dtype(jnp.float32))
        if _is_pooled_by_jax(plan)
        else plan
        for plan in plans
    )
    results = _run(verb, group, raw, token, ids, weights)
    rows, pullbacks = [], []
    for plan, feature_ids, weight, row in zip(plans, ids, weights, results.rows, strict=True):
        pullback = None
        if _is_pooled_by_jax(plan):
            valid, reduce = _valid(plan, feature_ids), _sum_last
            if plan.padding == PADDING_SPLITS:
                reduce = partial(_sum_bags, splits=feature_ids[1])
            pooled = partial(_pool_as, plan, row, valid=valid, reduce=reduce)
            row, pullback = jax.vjp(pooled, weight)
        rows.append(row)
        pullbacks.append(pullback)
    has_tap = tuple(None if tap is None else jnp.zeros((0,), tap.dtype) for tap in taps)
    unused = tuple(None if p is not None else w for p, w in zip(pullbacks, weights, strict=True))
    residuals = (tuple(pullbacks), unused, has_tap, results.token)
    return results._replace(rows=tuple(rows)), residuals


def _behind(x: jax.Array, token: jax.Array) -> jax.Array:
    """x, which XLA cannot have before the token: an update that takes it follows the lookup.

    Under ``jax.checkpoint`` the lookup is repeated for the backward pass. Gradients need not
    depend on its rows, and an update that overtook it would make its token stale.
    """
    if x.size == 0:
        return x
    zero = token[0].astype(x.dtype) * 0  # XLA keeps it: a float times 0 may be no 0
    first = (0,) * x.ndim
    return jax.lax.dynamic_update_slice(x, jnp.reshape(x[first] + zero, (1,) * x.ndim), first)


def _lookup_bwd(
    verb: Verb, group: int, plans: tuple[FeaturePlan, ...], residuals: Any, ct: LookupResults
) -> tuple[Any, ...]:
    del verb, group, plans
    pullbacks, unused, has_tap, token = residuals
    ct_weights, ct_taps = [], []
    for pullback, weight, tap, ct_rows in zip(pullbacks, unused, has_tap, ct.rows, strict=True):
        if pullback is not None:
            ct_weights.append(pullback(ct_rows)[0])
        else:
            ct_weights.append(None if weight is None else jnp.zeros_like(weight))
        ct_taps.append(None if tap is None else ct_rows.astype(tap.dtype))
    # One of them is enough.
    for position, ct_tap in enumerate(ct_taps):
        if ct_tap is not None and ct_tap.size > 0:
            ct_taps[position] = _behind(ct_tap, token)
            break
    return None, None, tuple(ct_weights), tuple(ct_taps)


_lookup.defvjp(_lookup_fwd, _lookup_bwd)


def _call(
    verb: Verb,
    group: int,
    plans: tuple[FeaturePlan, ...],
    token: jax.Array,
    features: Sequence[FeatureIds],
    taps: Sequence[jax.Array | None],
) -> LookupResults:
    ids = tuple((feature.ids, feature.pad, feature.scores) for feature in features)
    weights = tuple(feature.weights for feature in features)
    return _lookup(verb, group, plans, token, ids, weights, tuple(taps))


# lookup_with_taps(group, plans, token, features, taps) -> LookupResults, and the same for find,
# whose results have no header, index and unique_rows.
lookup_with_taps = partial(_call, lookup)
find_with_taps = partial(_call, find)
