"""apply_gradients: from gradients of looked-up rows to the next state."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dynemb_jax._primitives.collect import Collected, OutsidePlan, collect
from dynemb_jax._primitives.count_steps import count_steps
from dynemb_jax._primitives.lookup import tables_of
from dynemb_jax._primitives.residuals import GradientPlan, ResidualPlan
from dynemb_jax._primitives.update import update
from dynemb_jax.embeddings import Activations, Embeddings, checked_token, unnest
from dynemb_jax.errors import InputError, typed
from dynemb_jax.group import Group
from dynemb_jax.row_transforms import move_rows, outside_plan

_OWN_STEP = -1  # the step operand that means: the group's own count


class Residual(NamedTuple):
    """What one lookup left for the update, with the gradients of its features."""

    tables: tuple[int, ...]
    rows: list[jax.Array]  # header, unique_rows per table
    features: list[tuple[GradientPlan, list[jax.Array]]]  # with its operands


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
            tables' own. An error for tables whose optimizer is optax's.
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
    checked = [_checked_grads(group, *pair) for pair in zip(acts, grads, strict=True)]
    residuals = [
        residual
        for one, grad in zip(acts, _as_taken(group, acts, checked), strict=True)
        for residual in _unstacked(one, grad)
    ]
    outside = _outside_tables(group, residuals, learning_rate)
    rates = [
        table.optimizer.learning_rate if learning_rate is None else learning_rate
        for table in group.tables
    ]
    count = step
    with typed():
        if count is None and (outside or any(callable(rate) for rate in rates)):
            token, count = count_steps(group.id, token)
    values = [_rate(rate, count) for rate in rates]
    native_step = _step(step)
    with typed():
        moved: list[tuple[OutsidePlan, Collected]] = []
        if outside:
            token, moved = _moved(group, token, outside, residuals, count)
        plans, operands = _selected(residuals, lambda table: table not in outside)
        operands = [token, jnp.stack(values), native_step, *operands]
        token = group.settle(update(group.id, plans, operands, moved))
    return Embeddings(token, group)


def _outside_tables(
    group: Group, residuals: Sequence[Residual], learning_rate: Any
) -> dict[int, OutsidePlan]:
    """Tables of the lookups whose rows XLA moves, by position."""
    outside = {}
    for position in sorted({table for residual in residuals for table in residual.tables}):
        table = group.tables[position]
        plan = outside_plan(position, table)
        if plan is None:
            continue
        if learning_rate is not None:
            raise InputError(
                f"table {table.name!r}: learning_rate={learning_rate!r} cannot replace the one "
                "inside of its optax transformation; leave learning_rate out, and give the "
                "transformation a schedule."
            )
        if table.trainable:
            outside[position] = plan
    return outside


def _moved(
    group: Group,
    token: jax.Array,
    outside: dict[int, OutsidePlan],
    residuals: Sequence[Residual],
    step: Any,
) -> tuple[jax.Array, list[tuple[OutsidePlan, Collected]]]:
    """The rows of the outside tables, one step on. Changes nothing: the update writes them."""
    tables = tuple(outside.values())
    plans, operands = _selected(residuals, lambda table: table in outside)
    token, collected = collect(group.id, plans, tables, [token, *operands])
    count = jnp.asarray(step).astype(jnp.int32).reshape(())
    rules = [group.tables[table.table].optimizer for table in tables]
    moved = [move_rows(rule, count, one) for rule, one in zip(rules, collected, strict=True)]
    return token, list(zip(tables, moved, strict=True))


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
        checked.append(grad)
    return checked


def _as_taken(
    group: Group, acts: Sequence[Activations], grads: list[list[jax.Array]]
) -> list[list[jax.Array]]:
    """The gradients of each table as the engine takes them: as its rows are kept, or float32."""
    tables = [[group.features[position].table for position in one.positions] for one in acts]
    given: dict[int, set[Any]] = {}
    for of, one in zip(tables, grads, strict=True):
        for position, grad in zip(of, one, strict=True):
            given.setdefault(position, set()).add(grad.dtype)
    dtypes = {}
    for position, found in given.items():
        table = group.tables[position]
        is_kept = found == {table.dtype} and outside_plan(position, table) is None
        dtypes[position] = table.dtype if is_kept else np.float32
    return [
        [grad.astype(dtypes[table]) for table, grad in zip(of, one, strict=True)]
        for of, one in zip(tables, grads, strict=True)
    ]


def _selected(
    residuals: Sequence[Residual], wanted: Callable[[int], bool]
) -> tuple[tuple[ResidualPlan, ...], list[jax.Array]]:
    """Plans and operands with the gradients of wanted tables alone."""
    plans, operands = [], []
    for residual in residuals:
        features = [f for f in residual.features if wanted(f[0].table)]
        plans.append(ResidualPlan(residual.tables, tuple(plan for plan, _ in features)))
        operands += [*residual.rows, *(operand for _, own in features for operand in own)]
    return tuple(plans), operands


def _unstacked(acts: Activations, grads: list[jax.Array]) -> list[Residual]:
    """The lookups that acts hold: one, or as many as leading axes stack."""
    assert acts.plans is not None
    tables = tables_of(acts.plans)
    rows = [acts.header, *acts.unique_rows]
    features = []
    operands = zip(acts.index, acts.row_splits, grads, acts.weights, strict=True)
    for plan, own in zip(acts.plans, operands, strict=True):
        is_ragged = own[1] is not None
        gradient = GradientPlan(plan.table, plan.combiner, plan.weighted, is_ragged)
        features.append((gradient, [operand for operand in own if operand is not None]))
    lead = acts.header.ndim - 1
    if lead == 0:
        return [Residual(tables, rows, features)]
    count = math.prod(acts.header.shape[:lead])

    def lane(operands: list[jax.Array], i: int) -> list[jax.Array]:
        return [operand.reshape(count, *operand.shape[lead:])[i] for operand in operands]

    return [
        Residual(tables, lane(rows, i), [(plan, lane(own, i)) for plan, own in features])
        for i in range(count)
    ]
