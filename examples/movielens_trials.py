# SPDX-License-Identifier: Apache-2.0
"""The two experiments, each run alike on every kind of table."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import jax
import movielens_fixed as fixed
import numpy as np
import optax
from movielens_data import Interactions, batches
from movielens_metrics import auc, hits
from movielens_model import Batch, Steps, make_steps

import dynemb_jax as dj

TRAIN_BATCH = 64  # small, because the first days have few ratings and are seen once
EVAL_BATCH = 512
WATCH_EVERY = 100  # batches; statistics wait for the step, so not after each
INITIAL_SCALE = 0.02

# Both descriptions of each optimizer, dynemb_jax's and optax's, and a learning rate that suits it.
OPTIMIZERS = {
    "adagrad": (dj.optimizers.adagrad, optax.adagrad, 0.5),
    "adam": (dj.optimizers.adam, optax.adam, 0.001),
    "sgd": (dj.optimizers.sgd, optax.sgd, 2.0),
}

Watch = Callable[[int, dict[str, Any]], None]  # told the ratings done and the statistics


@dataclasses.dataclass(frozen=True)
class Settings:
    dim: int
    epochs: int
    optimizer: str
    seed: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: its embedding and its optimizer state, all float32."""
        state_columns = {"sgd": 0, "adagrad": 1, "adam": 2}[self.optimizer]
        return 4 * self.dim * (1 + state_columns)


@dataclasses.dataclass(frozen=True)
class Variant:
    """A kind of table.

    Attributes:
        embed: The module with the verbs lookup, apply_gradients, stats and close.
        create: Makes fresh tables.
        encode: Turns raw ids of a table into what lookup takes.
    """

    embed: ModuleType
    create: Callable[[], Any]
    encode: Callable[[str, np.ndarray], Any]


@dataclasses.dataclass(frozen=True)
class StreamResult:
    """Predictions made before training on the same day, and how the tables grew."""

    score: np.ndarray  # float32[n]
    rows_by_day: dict[str, list[int]]
    stats: dict[str, Any]
    seconds: float


@dataclasses.dataclass(frozen=True)
class FitResult:
    """Quality on the held-out tail after each epoch."""

    loss: list[float]
    tail_auc: list[float]
    hit_rate: list[float]
    stats: dict[str, Any]
    seconds: float


def features(settings: Settings) -> dict[str, dj.FeatureConfig]:
    """User, item, and the user's last items, which share the table of the item."""
    make, _, rate = OPTIMIZERS[settings.optimizer]
    shared = {
        "dim": settings.dim,
        "optimizer": make(rate),
        "initializer": dj.initializers.uniform(INITIAL_SCALE),
    }
    users, items = dj.TableConfig("users", **shared), dj.TableConfig("items", **shared)
    return {
        "user": dj.FeatureConfig(users),
        "item": dj.FeatureConfig(items),
        "history": dj.FeatureConfig(items, combiner="mean"),
    }


def dynamic(settings: Settings) -> Variant:
    """Tables that take any id and grow; nothing about the ids is known beforehand."""

    def create() -> dj.Embeddings:
        repeats = jax.default_backend() == "cpu"  # not available yet on a GPU
        return dj.create(features(settings), seed=settings.seed, deterministic=repeats)

    # dj.keys carries all 64 bits of an id, which jnp.asarray would cut to 32.
    return Variant(dj, create, lambda _table, ids: dj.keys(ids))


def hashed(settings: Settings, num_rows: dict[str, int]) -> Variant:
    """Fixed tables of `num_rows`; a row is shared by the ids that hash to it."""
    return Variant(
        fixed,
        lambda: _create_fixed(settings, num_rows),
        lambda table, ids: fixed.hashed_rows(ids, num_rows[table]),
    )


def full_vocabulary(settings: Settings, data: Interactions) -> Variant:
    """Fixed tables with a row for every id of `data`, those of the future included."""
    vocabulary = {"users": np.unique(data.user), "items": np.unique(data.item)}
    num_rows = {table: len(ids) for table, ids in vocabulary.items()}
    return Variant(
        fixed,
        lambda: _create_fixed(settings, num_rows),
        lambda table, ids: fixed.vocabulary_rows(ids, vocabulary[table]),
    )


def stream(variant: Variant, data: Interactions, settings: Settings, watch: Watch) -> StreamResult:
    """Predicts each day before training on it, once: every prediction is of the future."""
    started = time.perf_counter()
    steps = make_steps(variant.embed, settings.dim)
    emb, (params, opt_state) = variant.create(), steps.init(settings.seed)
    scores, rows_by_day = [], {}
    for rows in np.split(np.arange(len(data)), np.flatnonzero(np.diff(data.day)) + 1):
        day = data[rows]
        scores.append(_predict(steps, variant, emb, params, day))
        for batch in dj.feed(_batches(variant, day, TRAIN_BATCH)):
            emb, params, opt_state, _ = steps.train(emb, params, opt_state, batch)
        stats = variant.embed.stats(emb)
        for table, figures in stats.items():
            rows_by_day.setdefault(table, []).append(figures.rows)
        watch(rows[-1] + 1, stats)
    stats = variant.embed.stats(emb)
    variant.embed.close(emb)
    return StreamResult(np.concatenate(scores), rows_by_day, stats, time.perf_counter() - started)


def fit(
    variant: Variant,
    train: Interactions,
    tail: Interactions,
    ranked: np.ndarray,
    settings: Settings,
    watch: Watch,
) -> FitResult:
    """Trains on `train` for some epochs and measures on `tail` after each.

    Args:
        variant: The kind of table.
        train: Ratings before the tail.
        tail: Ratings to predict.
        ranked: The items to rank for each like of the tail, as `candidates` gives them.
        settings: Epochs, seed and sizes.
        watch: Told about the progress.
    """
    started = time.perf_counter()
    steps = make_steps(variant.embed, settings.dim)
    emb, (params, opt_state) = variant.create(), steps.init(settings.seed)
    rng = np.random.default_rng(settings.seed)
    losses, aucs, hit_rates = [], [], []
    likes = tail[np.flatnonzero(tail.label)]
    for epoch in range(settings.epochs):
        order, epoch_losses = rng.permutation(len(train)), []
        for batch in dj.feed(_batches(variant, train[order], TRAIN_BATCH)):
            emb, params, opt_state, loss = steps.train(emb, params, opt_state, batch)
            epoch_losses.append(loss)
            if len(epoch_losses) % WATCH_EVERY == 0:
                done = epoch * len(train) + len(epoch_losses) * TRAIN_BATCH
                watch(done, variant.embed.stats(emb))
        watch((epoch + 1) * len(train), variant.embed.stats(emb))
        losses.append(float(np.mean(epoch_losses)))
        aucs.append(auc(tail.label, _predict(steps, variant, emb, params, tail)))
        hit_rates.append(_hit_rate(steps, variant, emb, params, likes, ranked))
    stats = variant.embed.stats(emb)
    variant.embed.close(emb)
    return FitResult(losses, aucs, hit_rates, stats, time.perf_counter() - started)


def _predict(
    steps: Steps, variant: Variant, emb: Any, params: Any, data: Interactions
) -> np.ndarray:
    parts = _batches(variant, data, EVAL_BATCH)
    scores = [steps.predict(emb, params, batch) for batch in parts]
    return np.concatenate(scores)[: len(data)]


def _hit_rate(
    steps: Steps,
    variant: Variant,
    emb: Any,
    params: Any,
    likes: Interactions,
    ranked: np.ndarray,
) -> float:
    # The candidates take the place of the item, so that they are cut into the same batches.
    parts = _batches(variant, dataclasses.replace(likes, item=ranked), EVAL_BATCH)
    scores = [steps.rank(emb, params, batch) for batch in parts]
    return float(np.mean(hits(np.concatenate(scores)[: len(likes)])))


def _batches(variant: Variant, data: Interactions, size: int) -> Iterator[Batch]:
    for part, weight in batches(data, size):
        history = variant.encode("items", part.history)
        ids = {
            "user": variant.encode("users", part.user),
            "item": variant.encode("items", part.item),
            "history": dj.Padded(history, lengths=part.history_length),
        }
        yield Batch(ids, part.liked_share, part.label, weight)


def _create_fixed(settings: Settings, num_rows: dict[str, int]) -> fixed.Embeddings:
    _, make, rate = OPTIMIZERS[settings.optimizer]
    return fixed.create(
        features(settings),
        num_rows=num_rows,
        optimizer=make(rate),
        scale=INITIAL_SCALE,
        seed=settings.seed,
    )
