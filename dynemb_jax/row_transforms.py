"""Rules that XLA runs: an optax transformation mapped over the rows that were collected."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dynemb_jax._primitives.collect import Collected, OutsidePlan
from dynemb_jax.config import TableConfig
from dynemb_jax.optimizers import FromOptax, StateLeaf


def outside_plan(position: int, table: TableConfig) -> OutsidePlan | None:
    """The plan of a table whose rule XLA runs, None for others."""
    rule = table.optimizer
    if not isinstance(rule, FromOptax):
        return None
    return OutsidePlan(position, int(table.dim), len(rule.vectors), len(rule.scalars))


@partial(jax.jit, static_argnums=0)
def move_rows(rule: FromOptax, step: jax.Array, collected: Collected) -> Collected:
    """One step of the rule for each row; ``step`` counts the updates before, int32[]."""
    state = _unpack(rule.leaves, step, collected)
    axes = [None if leaf.role == "step" else 0 for leaf in rule.leaves]

    def move(grad: jax.Array, row: jax.Array, leaves: list[jax.Array]) -> tuple[Any, ...]:
        tree = jax.tree.unflatten(rule.treedef, leaves)
        updates, tree = rule.transformation.update(grad, tree, row)
        return (row + updates).astype(row.dtype), jax.tree.leaves(tree)

    # Optax is not written for strict promotion, which users may have asked for.
    with jax.numpy_dtype_promotion("standard"):
        mapped = jax.vmap(move, in_axes=(0, 0, axes))
        rows, state = mapped(collected.grads, collected.rows, state)
    vectors, scalars = _pack(rule.leaves, state)
    return collected._replace(rows=rows, vectors=vectors, scalars=scalars)


def _unpack(leaves: Sequence[StateLeaf], step: jax.Array, collected: Collected) -> list[jax.Array]:
    """The leaves of the transformation's state, all rows of each in one array."""
    vectors, numbers = iter(collected.vectors), 0
    state = []
    for leaf in leaves:
        if leaf.role == "step":
            state.append(step)
        elif leaf.role == "vector":
            state.append(next(vectors).astype(leaf.dtype))
        else:
            assert collected.scalars is not None
            bits = collected.scalars[:, numbers]
            numbers += 1
            if leaf.dtype == np.bool_:
                state.append(bits != 0)
            else:
                state.append(jax.lax.bitcast_convert_type(bits, leaf.dtype))
    return state


def _pack(
    leaves: Sequence[StateLeaf], state: Sequence[jax.Array]
) -> tuple[tuple[jax.Array, ...], jax.Array | None]:
    """The inverse of _unpack."""
    vectors, numbers = [], []
    for leaf, value in zip(leaves, state, strict=True):
        if leaf.role == "vector":
            vectors.append(value.astype(jnp.float32))
        elif leaf.role == "number":
            is_bool = leaf.dtype == np.bool_
            numbers.append(
                value.astype(jnp.int32)
                if is_bool
                else jax.lax.bitcast_convert_type(value, jnp.int32)
            )
    return tuple(vectors), jnp.stack(numbers, axis=1) if numbers else None
