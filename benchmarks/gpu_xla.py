"""The baseline: tables of fixed height that are indexed directly, in plain JAX.

No hashing and no insertion. SGD adds to the rows of all ids; the other optimizers need the sum
of each row's gradients first, so they start with ``jnp.unique``. XLA is told what holds: in range,
sorted, no index twice.
"""

import re
from typing import Any

import gpu_cases
import jax
import jax.numpy as jnp

import dynemb_jax as dj

LEARNING_RATE = gpu_cases.LEARNING_RATE
State = dict[str, jax.Array]


def create(case: gpu_cases.Case) -> list[State]:
    """Returns the tables: rows of zeros and the optimizer's state."""
    rows, dim = case.draw.vocabulary, case.dim
    first = getattr(dj.optimizers, case.optimizer)(0.0)
    accumulator = getattr(first, "initial_accumulator", 0.0)
    shapes = {
        "sgd": {},
        "adagrad": {"a": (rows, dim)},
        "rowwise_adagrad": {"a": (rows,)},
        "adam": {"m": (rows, dim), "v": (rows, dim)},
    }[case.optimizer]
    tables = []
    for _ in range(case.draw.tables):
        table = {name: jnp.full(shape, accumulator) for name, shape in shapes.items()}
        table["w"] = jnp.zeros((rows, dim))
        if case.optimizer == "adam":
            table["t"] = jnp.zeros(())
        tables.append(table)
    return tables


def unique_sums(
    ids: jax.Array, grads: jax.Array, vocabulary: int
) -> tuple[jax.Array, jax.Array, dict[str, Any]]:
    """Sums the gradients of equal ids: rows [n], sums [n, dim], and how to scatter to them.

    Rows beyond the unique ones are out of range, and different, so the scatter may drop them.
    """
    n = ids.size
    unique, inverse = jnp.unique(ids, size=n, fill_value=vocabulary, return_inverse=True)
    rows = jnp.where(unique < vocabulary, unique, vocabulary + jnp.arange(n, dtype=unique.dtype))
    sums = jnp.zeros_like(grads).at[inverse.reshape(-1)].add(grads)
    return rows, sums, {"mode": "drop", "unique_indices": True, "indices_are_sorted": True}


def sgd(table: State, ids: jax.Array, grads: jax.Array) -> State:
    """Moves w by -lr g."""
    return {"w": table["w"].at[ids].add(-LEARNING_RATE * grads)}


def adagrad(table: State, ids: jax.Array, grads: jax.Array) -> State:
    """Adds: a += g**2; w -= lr g / sqrt(a + eps)."""
    rows, g, how = unique_sums(ids, grads, len(table["w"]))
    a = jnp.take(table["a"], rows, axis=0, mode="clip") + g * g
    step = -LEARNING_RATE * g / jnp.sqrt(a + 1e-7)
    return {"a": table["a"].at[rows].set(a, **how), "w": table["w"].at[rows].add(step, **how)}


def rowwise_adagrad(table: State, ids: jax.Array, grads: jax.Array) -> State:
    """Adds: a += mean(g**2), one number a row; w -= lr g / (sqrt(a) + eps)."""
    rows, g, how = unique_sums(ids, grads, len(table["w"]))
    a = jnp.take(table["a"], rows, axis=0, mode="clip") + jnp.mean(g * g, axis=1)
    step = -LEARNING_RATE * g / (jnp.sqrt(a) + 1e-8)[:, None]
    return {"a": table["a"].at[rows].set(a, **how), "w": table["w"].at[rows].add(step, **how)}


def adam(table: State, ids: jax.Array, grads: jax.Array) -> State:
    """Lazy Adam: only rows of the batch move, corrected by the count of all steps."""
    b1, b2 = 0.9, 0.999
    rows, g, how = unique_sums(ids, grads, len(table["w"]))
    t = table["t"] + 1
    m = b1 * jnp.take(table["m"], rows, axis=0, mode="clip") + (1 - b1) * g
    v = b2 * jnp.take(table["v"], rows, axis=0, mode="clip") + (1 - b2) * g * g
    step = -LEARNING_RATE * (m / (1 - b1**t)) / (jnp.sqrt(v / (1 - b2**t)) + 1e-8)
    return {
        "t": t,
        "m": table["m"].at[rows].set(m, **how),
        "v": table["v"].at[rows].set(v, **how),
        "w": table["w"].at[rows].add(step, **how),
    }


RULES = {"sgd": sgd, "adagrad": adagrad, "rowwise_adagrad": rowwise_adagrad, "adam": adam}


class XlaVariant:
    """Fixed tables; ids are row numbers, so hot rows are neighbours: an advantage."""

    name = "xla"

    def __init__(self, case: gpu_cases.Case, grads: list[jax.Array]):
        self.case = case
        self.grads = grads
        self.tables = create(case)
        self.batches = gpu_cases.ids_on_device(case.draw)
        step = jax.jit(self._train_step, donate_argnums=0)
        self._train = step.lower(self.tables, self.batches[0], grads).compile()
        self._evaluate = jax.jit(self._rows)

    def _rows(self, tables: list[State], ids: list[jax.Array]) -> list[jax.Array]:
        bag = self.case.bag
        rows = [
            jnp.take(table["w"], x, axis=0, mode="clip")
            for table, x in zip(tables, ids, strict=True)
        ]
        return [r.reshape(-1, bag, r.shape[-1]).mean(1) if bag > 1 else r for r in rows]

    def _train_step(
        self, tables: list[State], ids: list[jax.Array], grads: list[jax.Array]
    ) -> tuple[list[State], list[jax.Array]]:
        rows = self._rows(tables, ids)
        bag, rule = self.case.bag, RULES[self.case.optimizer]
        # The gradient of a mean: an equal share for each id of the bag.
        shares = [jnp.repeat(g / bag, bag, axis=0) if bag > 1 else g for g in grads]
        return [rule(*one) for one in zip(tables, ids, shares, strict=True)], rows

    def train(self, i: int) -> Any:
        """Step number i; returns the rows."""
        self.tables, rows = self._train(
            self.tables, self.batches[i % len(self.batches)], self.grads
        )
        return rows

    def evaluate(self, i: int) -> Any:
        """Lookup number i; returns the rows."""
        return self._evaluate(self.tables, self.batches[i % len(self.batches)])

    def table_copies(self) -> int:
        """How often the step copies a whole table, which it need not: arguments are donated."""
        rows = self.case.draw.vocabulary
        return len(re.findall(rf"= f32\[{rows}[^\]]*\]\S* copy\(", self._train.as_text() or ""))

    def close(self) -> None:
        """Frees the tables."""
        for array in jax.tree.leaves(self.tables):
            if not array.is_deleted():
                array.delete()
