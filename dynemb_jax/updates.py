"""apply_gradients: from gradients of looked-up rows to the next state."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dynemb_jax._primitives.count_steps import count_steps
from dynemb_jax._primitives.lookup import tables_of
from dynemb_jax._primitives.update import GradientPlan, ResidualPlan, update
from dynemb_jax.embeddings import Activations, Embeddings, checked_token, unnest
from dynemb_jax.errors import InputError, typed
from dynemb_jax.group import Group

_OWN_STEP = -1  # the step operand that means: the group's own count

Rate = float | jax.Array | Callable[[Any], Any]


def apply_gradients(
    emb: Embeddings,
    acts: Activations | Sequence[Activations],
    grads: Any,
    *,
    learning_rate: Rate | None = None,
    step: Any = None,
) -> Embeddings:
    """Updates the looked-up rows: gradients of equal keys are summed, each row takes one step.

    Args:
        emb: the current Embeddings.
        acts: of a training lookup, or a list of them (micro-batches, towers) for one exact update
            over all. Acts stacked by ``lax.scan`` along a first axis count as a list.
        grads: gradient of the loss for ``acts.rows``, in its nest; a list beside a list.
        learning_rate: number, schedule (callable of the step) or traced scalar in place of the
            tables' own.
        step: updates done before this one, for schedules and global bias correction; None uses
            the count of this Embeddings.

    Returns:
        The next Embeddings.

    Raises:
        InputError: grads that do not fit acts, acts of ``train=False`` or of other tables.
        StaleStateError: emb is not the current state, or keys were erased since the lookup.
    """
    token = checked_token(emb)
    group = emb.group
    if isinstance(acts, Activations):
        acts, grads = [acts], [grads]
    elif not isinstance(grads, list | tuple) or len(grads) != len(acts):
        raise InputError(
            f"apply_gradients got a list of {len(acts)} acts, so grads must be a list of as many, "
            f"got {type(grads).__name__}; pass one gradient nest per lookup."
        )
    if not acts:
        raise InputError("apply_gradients got no acts; pass the Activations of a lookup.")
    residuals = [
        residual
        for one, grad in zip(acts, grads, strict=True)
        for residual in _unstacked(one, _checked_grads(group, one, grad))
    ]
    plans = tuple(plan for plan, _ in residuals)
    operands = [operand for _, operands in residuals for operand in operands]
    rates = [
        table.optimizer.learning_rate if learning_rate is None else learning_rate
        for table in group.tables
    ]
    count = step
    with typed():
        if count is None and any(callable(rate) for rate in rates):
            token, count = count_steps(group.id, token)
    values = [_rate(rate, count) for rate in rates]
    native_step = _step(step)
    with typed():
        operands = [token, jnp.stack(values), native_step, *operands]
        token = group.settle(update(group.id, plans, operands))
    return Embeddings(token, group)


def _rate(rate: Rate, step: Any) -> jax.Array:
    value = rate(step) if callable(rate) else rate
    try:
        array = jnp.asarray(value).astype(jnp.float32)
    except (TypeError, ValueError):
        array = None
    if array is None or array.size != 1:
        raise InputError(
            f"learning_rate must be a number, a schedule that gives one, or a traced scalar, got "
            f"{value!r}; it is one for all tables, set different ones in their optimizers."
        )
    if not isinstance(array, Tracer) and not np.isfinite(array).all():
        raise InputError(f"learning_rate must be finite, got {value!r}; pass e.g. 0.05.")
    return array.reshape(())


def _step(step: Any) -> Any:
    """The step operand: the caller's, or the mark for the group's own count."""
    if step is None:
        return jnp.full(1, _OWN_STEP, jnp.int32)
    dtype = np.dtype(np.int64) if type(step) is int else getattr(step, "dtype", None)
    is_count = dtype is not None and dtype.kind in "iu" and jnp.size(step) == 1
    if not is_count or (not isinstance(step, Tracer) and not 0 <= int(step) < 1 << 31):
        raise InputError(
            f"step must be a whole number in [0, 2**31), got {step!r}; it is the number of updates "
            "done before, None counts them here."
        )
    return jnp.asarray(step).astype(jnp.int32).reshape(1)


def _checked_grads(group: Group, acts: Activations, grads: Any) -> list[jax.Array]:
    if not isinstance(acts, Activations):
        raise InputError(
            f"apply_gradients needs the Activations of lookup, got {type(acts).__name__}; pass "
            "acts itself, not acts.rows."
        )
    if acts.group is not group:
        raise InputError(
            f"apply_gradients got acts of other tables, {acts.group!r}, for {group!r}; pass the "
            "Embeddings that was looked up."
        )
    if acts.plans is None:
        raise InputError(
            "apply_gradients got acts of lookup(train=False), which changes nothing; look up with "
            "train=True to train."
        )
    leaves = unnest(group, acts.positions, grads, "grads")
    rows = unnest(group, acts.positions, acts.rows, "acts.rows")
    checked = []
    for position, grad, row in zip(acts.positions, leaves, rows, strict=True):
        path = group.features[position].path
        if grad is None or jnp.shape(grad) != jnp.shape(row):
            got = "None" if grad is None else str(jnp.shape(grad))
            raise InputError(
                f"feature {path}: grads must have shape {jnp.shape(row)} like acts.rows, got "
                f"{got}; pass the gradient for acts.rows, zeros where there is none."
            )
        grad = jnp.asarray(grad)
        if not jnp.issubdtype(grad.dtype, jnp.floating):
            raise InputError(
                f"feature {path}: grads must be floating, got {grad.dtype}; pass the gradient "
                "for acts.rows."
            )
        checked.append(grad.astype(jnp.float32))
    return checked


def _residual_plan(acts: Activations) -> ResidualPlan:
    gradients = [
        GradientPlan(plan.table, plan.combiner, plan.weighted, splits is not None)
        for plan, splits in zip(acts.plans, acts.row_splits, strict=True)
    ]
    return ResidualPlan(tables_of(acts.plans), tuple(gradients))


def _unstacked(
    acts: Activations, grads: list[jax.Array]
) -> list[tuple[ResidualPlan, list[jax.Array]]]:
    """Operands of the lookups that acts hold: one, or as many as leading axes stack."""
    operands = [acts.header, *acts.unique_rows]
    for per_feature in zip(acts.index, acts.row_splits, grads, acts.weights, strict=True):
        operands += [operand for operand in per_feature if operand is not None]
    lead = acts.header.ndim - 1
    plan = _residual_plan(acts)
    if lead == 0:
        return [(plan, operands)]
    count = math.prod(acts.header.shape[:lead])
    flat = [operand.reshape(count, *operand.shape[lead:]) for operand in operands]
    return [(plan, [operand[i] for operand in flat]) for i in range(count)]
