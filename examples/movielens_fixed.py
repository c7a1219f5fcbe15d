# SPDX-License-Identifier: Apache-2.0
"""Fixed-size tables in plain JAX, behind the same verbs as `dynemb_jax`: what to compare with.

The mathematics is that of the dynamic tables, so that a difference in quality comes from the tables
and from nothing else: initial values are uniform on the same interval, the gradients of a repeated
id are summed first, and only the rows of the batch are updated. An id is a row number here;
`hashed_rows` and `vocabulary_rows` are the two usual ways to get one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dynemb_jax as dj


class Table(NamedTuple):
    """One array of rows, and the optax state that goes with it."""

    rows: jax.Array  # float32[num_rows, dim]
    state: Any


class Feature(NamedTuple):
    """Which table a feature reads; a mean over the last axis of its ids when `pooled`."""

    name: str
    table: str
    pooled: bool


class Activations(NamedTuple):
    """Rows of each feature, and the ids that the update needs."""

    rows: dict[str, jax.Array]
    ids: dict[str, Any]


class TableStats(NamedTuple):
    """The figures of a fixed table that a dynamic one reports too."""

    rows: int
    bytes: int
    index_bytes: int = 0
    growths: int = 0


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("tables",),
    meta_fields=("features", "optimizer"),
)
@dataclasses.dataclass(frozen=True)
class Embeddings:
    """Tables by name; a pytree."""

    tables: dict[str, Table]
    features: tuple[Feature, ...]
    optimizer: optax.GradientTransformation


def create(
    features: Mapping[str, dj.FeatureConfig],
    *,
    num_rows: Mapping[str, int],
    optimizer: optax.GradientTransformation,
    scale: float,
    seed: int,
) -> Embeddings:
    """Makes every table of `features` with `num_rows` of its name, uniform in [-scale, scale)."""
    dims = {config.table.name: config.table.dim for config in features.values()}
    keys = jax.random.split(jax.random.key(seed), len(dims))
    tables = {}
    for key, (name, dim) in zip(keys, dims.items(), strict=True):
        rows = jax.random.uniform(key, (num_rows[name], dim), minval=-scale, maxval=scale)
        tables[name] = Table(rows, optimizer.init(rows))
    named = tuple(Feature(k, c.table.name, c.combiner == "mean") for k, c in features.items())
    return Embeddings(tables, named, optimizer)


def lookup(
    emb: Embeddings, ids: dict[str, Any], *, train: bool = True
) -> tuple[Activations, Embeddings]:
    """Rows of each feature. Every id has a row, so `train` makes no difference."""
    del train
    rows = _gather({name: table.rows for name, table in emb.tables.items()}, emb.features, ids)
    return Activations(rows, ids), emb


def apply_gradients(emb: Embeddings, acts: Activations, grads: dict[str, jax.Array]) -> Embeddings:
    """One optimizer step on the rows that `acts` read, duplicates summed."""
    arrays = {name: table.rows for name, table in emb.tables.items()}
    _, pull = jax.vjp(lambda arrays: _gather(arrays, emb.features, acts.ids), arrays)
    (dense,) = pull(grads)
    # Pulled back, ones are positive on the rows of the batch and zero elsewhere. Without this,
    # Adam would move every row of the table in every step.
    (reach,) = pull(jax.tree.map(jnp.ones_like, grads))
    tables = {
        name: _update(emb.optimizer, table, dense[name], reach[name] > 0)
        for name, table in emb.tables.items()
    }
    return dataclasses.replace(emb, tables=tables)


def stats(emb: Embeddings) -> dict[str, TableStats]:
    return {
        name: TableStats(len(table.rows), sum(leaf.nbytes for leaf in jax.tree.leaves(table)))
        for name, table in emb.tables.items()
    }


def close(emb: Embeddings) -> None:
    """Nothing to do: JAX frees arrays that nobody refers to."""


def hashed_rows(ids: np.ndarray, num_rows: int) -> np.ndarray:
    """Row numbers by hashing: splitmix64, modulo the table's size. Ids may collide."""
    z = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) % np.uint64(num_rows)).astype(np.int32)


def vocabulary_rows(ids: np.ndarray, vocabulary: np.ndarray) -> np.ndarray:
    """Row numbers by position in a sorted vocabulary, which must be known before training."""
    return np.searchsorted(vocabulary, ids).astype(np.int32)


def _gather(
    arrays: dict[str, jax.Array], features: tuple[Feature, ...], ids: dict[str, Any]
) -> dict[str, jax.Array]:
    """Differentiable in `arrays`."""
    rows = {}
    for name, table, pooled in features:
        if not pooled:
            rows[name] = jnp.take(arrays[table], ids[name], axis=0)
            continue
        padded = ids[name]
        real = jnp.arange(padded.ids.shape[-1]) < padded.lengths[..., None]
        # A mean of nothing is 0, as in the dynamic tables.
        share = real / jnp.maximum(padded.lengths[..., None], 1)
        taken = jnp.take(arrays[table], padded.ids, axis=0)
        rows[name] = jnp.einsum("...ld,...l->...d", taken, share)
    return rows


def _update(
    optimizer: optax.GradientTransformation, table: Table, dense: jax.Array, touched: jax.Array
) -> Table:
    """Steps the touched rows; their state too, while a step count has no row and always goes on."""

    def keep(new: Any, old: Any) -> Any:
        return jnp.where(touched, new, old) if new.shape == touched.shape else new

    updates, state = optimizer.update(dense, table.state, table.rows)
    rows = keep(optax.apply_updates(table.rows, updates), table.rows)
    return Table(rows, jax.tree.map(keep, state, table.state))
