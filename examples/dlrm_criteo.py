# SPDX-License-Identifier: Apache-2.0
"""DLRM on files of Criteo's format, of any size, in one pass and without a vocabulary.

Twenty-six tables of one `dj.create` take the hashed categories as they are in the file. The dense
part is that of Naumov et al. 2019: a bottom MLP over the counts, dot products of all pairs of
vectors, a top MLP. Tables learn with row-wise Adagrad, the MLPs with optax.

Every batch is predicted before it is trained on, so loss and AUC are those of unseen clicks.
Without --data the file is generated: small, seeded, and with something to learn in it.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import typer
from criteo_data import (
    NUM_CATEGORIES,
    NUM_COUNTS,
    Batch,
    DataError,
    StreamingAuc,
    filled,
    generate,
    read,
)

import dynemb_jax as dj

CLAIMED_AUC = 0.7  # of the generated file, each click predicted before it is trained on

NAMES = [f"C{column + 1}" for column in range(NUM_CATEGORIES)]


class Dlrm(nn.Module):
    """Logits of a click: [batch]."""

    dim: int

    @nn.compact
    def __call__(self, counts: jax.Array, rows: dict[str, jax.Array]) -> jax.Array:
        """counts: [batch, 13]; rows: per category [batch, dim]."""
        bottom = nn.relu(nn.Dense(64)(counts))
        bottom = nn.relu(nn.Dense(self.dim)(bottom))
        vectors = jnp.stack([bottom, *(rows[name] for name in NAMES)], axis=1)
        dots = jnp.einsum("bid,bjd->bij", vectors, vectors)
        left, right = np.tril_indices(1 + NUM_CATEGORIES, -1)
        top = jnp.concatenate([vectors.reshape(len(counts), -1), dots[:, left, right]], axis=-1)
        top = nn.relu(nn.Dense(128)(top))
        return nn.Dense(1)(top)[:, 0]


def create(dim: int, learning_rate: float, seed: int) -> dj.Embeddings:
    """Twenty-six empty tables, one a category."""
    optimizer = dj.optimizers.rowwise_adagrad(learning_rate)
    tables = {
        name: dj.TableConfig(
            name, dim, optimizer=optimizer, initializer=dj.initializers.uniform(0.05)
        )
        for name in NAMES
    }
    return dj.create({name: dj.FeatureConfig(table) for name, table in tables.items()}, seed=seed)


def step_inputs(batches: Iterator[Batch], size: int) -> Iterator[Any]:
    """(ids, counts, label, weight) of each batch, all of one size."""
    for batch in batches:
        whole, weight = filled(batch, size)
        columns = np.ascontiguousarray(whole.categories.T)
        ids = {name: dj.keys(column) for name, column in zip(NAMES, columns, strict=True)}
        yield ids, whole.counts, whole.label, weight


def make_train_step(model: Dlrm, tx: optax.GradientTransformation):
    @functools.partial(jax.jit, donate_argnames=("emb", "params", "opt_state"))
    def train_step(emb, params, opt_state, batch):
        """Returns the next state, and [batch]: losses and probabilities before the update."""
        ids, counts, label, weight = batch
        acts, emb = dj.lookup(emb, ids)

        def loss_fn(params, rows):
            logits = model.apply(params, counts, rows)
            losses = optax.sigmoid_binary_cross_entropy(logits, label) * weight
            return jnp.sum(losses) / jnp.sum(weight), (losses, jax.nn.sigmoid(logits))

        grad_fn = jax.value_and_grad(loss_fn, argnums=(0, 1), has_aux=True)
        (_, seen), (d_params, d_rows) = grad_fn(params, acts.rows)
        emb = dj.apply_gradients(emb, acts, d_rows)
        updates, opt_state = tx.update(d_params, opt_state, params)
        return emb, optax.apply_updates(params, updates), opt_state, seen

    return train_step


class Progress:
    """Loss and AUC of all clicks, and of those since the last line that was printed."""

    def __init__(self) -> None:
        self.total, self.recent = StreamingAuc(), StreamingAuc()
        self.rows, self.recent_rows, self.recent_loss = 0, 0, 0.0
        self.started = time.perf_counter()

    def add(self, label: Any, weight: Any, seen: tuple[Any, Any]) -> None:
        """Counts what one step predicted."""
        losses, probability = (np.asarray(values) for values in seen)
        real = np.asarray(weight) > 0
        for auc in (self.total, self.recent):
            auc.add(np.asarray(label)[real], probability[real])
        self.rows += int(real.sum())
        self.recent_rows += int(real.sum())
        self.recent_loss += float(losses.sum())

    def say(self) -> None:
        """Prints a line and starts the next one."""
        rate = self.rows / (time.perf_counter() - self.started)
        loss, recent = self.recent_loss / max(1, self.recent_rows), self.recent.value()
        print(
            f"{self.rows:>12,} clicks  loss {loss:.4f}  AUC {recent:.4f}  "
            f"AUC from the start {self.total.value():.4f}  {rate:,.0f}/s",
            flush=True,
        )
        self.recent, self.recent_rows, self.recent_loss = StreamingAuc(), 0, 0.0


def train(path: Path, size: int, dim: int, seed: int, every: int) -> float:
    """One pass over a file; returns the AUC of all its clicks."""
    emb = create(dim, 0.1, seed)
    model, tx = Dlrm(dim), optax.adam(3e-3)
    rows = {name: jnp.zeros((size, dim)) for name in NAMES}
    params = model.init(jax.random.key(seed), jnp.zeros((size, NUM_COUNTS)), rows)
    opt_state, train_step = tx.init(params), make_train_step(model, tx)
    progress, behind = Progress(), None
    with dj.feed(step_inputs(read(path, size), size)) as batches:
        for batch in batches:
            emb, params, opt_state, seen = train_step(emb, params, opt_state, batch)
            if behind is not None:  # one step behind: the device does not wait for NumPy
                progress.add(*behind)
            behind = (batch[2], batch[3], seen)
            if progress.recent_rows >= every:
                progress.say()
    progress.add(*behind)
    progress.say()
    stats = dj.stats(emb).values()
    mebibytes = sum(s.bytes for s in stats) / 2**20
    print(f"{sum(s.rows for s in stats):,} rows in {len(stats)} tables, {mebibytes:.1f} MiB")
    dj.close(emb)
    return progress.total.value()


def main(
    data: Annotated[
        Path | None, typer.Option(help="A file of Criteo's format, plain or gzipped.")
    ] = None,
    generated: Annotated[
        Path | None,
        typer.Option("--generate", help="Keep the generated file here; .gz compresses it."),
    ] = None,
    rows: Annotated[int, typer.Option(min=100, help="Of a generated file.")] = 2000,
    batch: Annotated[int, typer.Option(min=1, help="Clicks a step.")] = 32,
    every: Annotated[int, typer.Option(min=1, help="Clicks a line of output.")] = 500,
    dim: Annotated[int, typer.Option(min=1, help="Columns of an embedding.")] = 16,
    seed: Annotated[int, typer.Option(help="Of the model and of a generated file.")] = 0,
) -> None:
    """Trains a DLRM in one pass over a file; for a real one write e.g. --batch 4096."""
    try:
        if data is not None:
            if generated is not None:
                raise DataError("--data and --generate exclude each other; leave one out.")
            train(data, batch, dim, seed, every)
            return
        with tempfile.TemporaryDirectory() as folder:
            path = generated or Path(folder) / "generated.tsv"
            generate(path, rows, seed)
            auc = train(path, batch, dim, seed, every)
    except DataError as error:
        typer.echo(f"dlrm_criteo: {error}", err=True)
        raise typer.Exit(1) from None
    holds = auc > CLAIMED_AUC
    print(f"{'HOLDS' if holds else 'FAILS'}: AUC {auc:.3f}, more than {CLAIMED_AUC}")
    if not holds:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
