"""Dynamic tables of a case, and their whole steps through ``jax.jit``."""

import functools
from typing import Any

import gpu_cases
import jax
import jax.numpy as jnp

import dynemb_jax as dj

FILL_IDS = 1 << 21  # a call, all tables


@functools.partial(jax.jit, donate_argnames="emb")
def train(emb: dj.Embeddings, ids: Any, grads: Any) -> tuple[dj.Embeddings, Any]:
    """A whole step; it returns the rows as well, which a model reads."""
    acts, emb = dj.lookup(emb, ids)
    return dj.apply_gradients(emb, acts, grads), acts.rows


@jax.jit
def evaluate(emb: dj.Embeddings, ids: Any) -> Any:
    """A lookup that finds only."""
    return dj.lookup(emb, ids, train=False)[0].rows


@functools.partial(jax.jit, donate_argnames="emb")
def insert(emb: dj.Embeddings, ids: Any) -> dj.Embeddings:
    """Finds or inserts."""
    return dj.lookup(emb, ids)[1]


class DynembVariant:
    """Tables grown from nothing to what the case asks for; ids come as 64-bit keys."""

    name = "dynemb"
    deterministic = False

    def __init__(self, case: gpu_cases.Case, grads: list[jax.Array]):
        self.case = case
        self.grads = grads
        # Zeros, as in XLA's table: after equal steps both give equal rows.
        configs = [
            dj.TableConfig(
                f"t{i}",
                case.dim,
                optimizer=gpu_cases.optimizer(case.optimizer),
                initializer=dj.initializers.constant(),
                dtype=case.dtype,
            )
            for i in range(case.draw.tables)
        ]
        combiner = "mean" if case.bag > 1 else None
        features = [dj.FeatureConfig(config, combiner) for config in configs]
        self.emb = dj.create(features, deterministic=self.deterministic)
        self._fill(int(case.draw.vocabulary * case.filled))
        self.batches = [
            [self._shaped(ids) for ids in batch] for batch in gpu_cases.keys_on_device(case.draw)
        ]

    def _shaped(self, ids: dj.Keys) -> Any:
        if self.case.sequences:
            length = self.case.draw.ids // self.case.sequences
            splits = jnp.arange(self.case.sequences + 1, dtype=jnp.int32) * length
            return dj.Ragged(ids, splits)
        return ids.reshape(-1, self.case.bag) if self.case.bag > 1 else ids

    def _fill(self, rows: int) -> None:
        tables = self.case.draw.tables
        chunk = max(1, min(rows, FILL_IDS // tables))
        for first in range(0, rows, chunk):
            # The last chunk starts over at 0: one shape, one program.
            ids = (jnp.arange(chunk, dtype=jnp.int32) + first) % rows
            keys = gpu_cases.spread(tables, [ids] * tables)
            if self.case.bag > 1:
                keys = [one.reshape(-1, 1) for one in keys]
            self.emb = insert(self.emb, keys)
        jax.block_until_ready(self.emb)

    def train(self, i: int) -> Any:
        """Step number i; returns the rows."""
        self.emb, rows = train(self.emb, self.batches[i % len(self.batches)], self.grads)
        return rows

    def evaluate(self, i: int) -> Any:
        """Lookup number i; returns the rows."""
        return evaluate(self.emb, self.batches[i % len(self.batches)])

    def facts(self) -> dict[str, int]:
        """Counts over all tables, since they were created."""
        tables = dj.stats(self.emb).values()
        return {
            name: sum(getattr(table, name) for table in tables)
            for name in ("rows", "capacity", "ids", "hits", "found", "missing")
        } | {"waits": next(iter(tables)).waits}

    def close(self) -> None:
        """Frees the tables."""
        dj.close(self.emb)


class DeterministicVariant(DynembVariant):
    """The same tables, whose steps give the same bits in every run."""

    name = "deterministic"
    deterministic = True
