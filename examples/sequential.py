# SPDX-License-Identifier: Apache-2.0
"""The next film of a user of MovieLens-100K: a small SASRec over ragged sequences.

Each user's ratings in time order are one sequence; its last item is held out, and the model ranks
all items that the user has not rated before it. The encoder is that of SASRec (Kang and McAuley
2018): causal self-attention over item and position embeddings, scored against the item embeddings
themselves. Items need no vocabulary: their raw ids are keys of one table, which the sequence, the
next items and the negatives of the loss share.

A batch is a `dj.Ragged`: sequences of any lengths behind each other, as many as fit into a fixed
number of places. The table works on the ids that are there; attention alone sees a padded matrix.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
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
from movielens_data import DataError, load

import dynemb_jax as dj

LENGTH = 50  # of a window of a sequence
BATCH = 64  # windows
CAPACITY = 2048  # ids of a batch
NEGATIVES = 256
DIM = 48
AT = 10
MARGIN = 1.4  # how much better than popularity this claims to be


@dataclasses.dataclass(frozen=True)
class Split:
    """Sequences without their last items, and these."""

    users: list[np.ndarray]  # int64, per user: items in time order, the last one left out
    last: np.ndarray  # int64[users]
    items: np.ndarray  # int64: the catalogue, sorted


def split(path: Path | None) -> Split:
    """Leave-one-out sequences of users with at least three ratings."""
    ratings = load(path, history_length=1)  # sorted by time
    order = np.argsort(ratings.user, kind="stable")
    starts = np.flatnonzero(np.diff(ratings.user[order])) + 1
    sequences = [ratings.item[rows] for rows in np.split(order, starts) if len(rows) > 2]
    return Split(
        users=[sequence[:-1] for sequence in sequences],
        last=np.array([sequence[-1] for sequence in sequences]),
        items=np.unique(ratings.item),
    )


def windows(users: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """Pieces of at most LENGTH + 1 items in random order: LENGTH inputs, each with its next item.

    Pieces overlap in one item, so that each item but a user's first is predicted once an epoch;
    where the first piece begins is random.
    """
    pieces = []
    for sequence in users:
        first = int(rng.integers(1, LENGTH + 1))
        cuts = [0, *range(first, len(sequence) - 1, LENGTH), len(sequence) - 1]
        pieces += [sequence[a : b + 1] for a, b in itertools.pairwise(cuts) if b > a]
    return [pieces[i] for i in rng.permutation(len(pieces))]


def packed(pieces: list[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Groups of pieces that fit into a batch."""
    group: list[np.ndarray] = []
    for piece in pieces:
        if len(group) == BATCH or sum(map(len, group)) + len(piece) > CAPACITY:
            yield group
            group = []
        group.append(piece)
    yield group


def ragged(sequences: list[np.ndarray]) -> dj.Ragged:
    """One shape for every batch: empty bags fill it up."""
    empty = [np.zeros(0, np.int64)] * (BATCH - len(sequences))
    return dj.Ragged.from_lists([*sequences, *empty], capacity=CAPACITY)


def train_batches(data: Split, rng: np.random.Generator) -> Iterator[Any]:
    """Ids of one epoch: sequences, their next items, and negatives for the whole batch."""
    seen = np.unique(np.concatenate(data.users))
    for group in packed(windows(data.users, rng)):
        yield {
            "sequence": ragged([piece[:-1] for piece in group]),
            "next": ragged([piece[1:] for piece in group]),
            "negatives": dj.keys(rng.choice(seen, NEGATIVES, replace=seen.size < NEGATIVES)),
        }


def positions(row_splits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Where the ids of a padded [BATCH, LENGTH] matrix lie in a Ragged, and which are meant."""
    place = row_splits[:-1, None] + jnp.arange(LENGTH, dtype=jnp.int32)[None, :]
    return jnp.minimum(place, CAPACITY - 1), place < row_splits[1:, None]


class Encoder(nn.Module):
    """[BATCH, LENGTH, DIM] item rows to what each position expects next, of the same shape."""

    @nn.compact
    def __call__(self, items: jax.Array, meant: jax.Array, train: bool) -> jax.Array:
        drop = functools.partial(nn.Dropout, 0.2, deterministic=not train)
        place = self.param("position", nn.initializers.normal(0.02), (LENGTH, DIM))
        x = drop()(nn.LayerNorm()(items) + place[None])
        mask = nn.combine_masks(nn.make_causal_mask(meant), meant[:, None, None, :])
        for _ in range(2):
            y = nn.LayerNorm()(x)
            x = x + drop()(nn.MultiHeadDotProductAttention(num_heads=2)(y, mask=mask))
            y = nn.LayerNorm()(x)
            x = x + drop()(nn.Dense(DIM)(nn.gelu(nn.Dense(2 * DIM)(y))))
        return nn.LayerNorm()(x)


def make_train_step(model: Encoder, tx: optax.GradientTransformation):
    @functools.partial(jax.jit, donate_argnames=("emb", "params", "opt_state"))
    def train_step(emb, params, opt_state, ids, key):
        acts, emb = dj.lookup(emb, ids)
        place, meant = positions(ids["sequence"].row_splits)
        # A negative that is the next item itself would be pushed away and pulled in.
        same = ids["next"].ids.pairs[place][:, :, None] == ids["negatives"].pairs[None, None]
        is_next = same[..., 0] & same[..., 1]

        def loss_fn(params, rows):
            inputs = rows["sequence"][place]
            expected = model.apply(params, inputs, meant, True, rngs={"dropout": key})
            right = jnp.sum(expected * rows["next"][place], axis=-1, keepdims=True)
            wrong = jnp.where(is_next, -jnp.inf, expected @ rows["negatives"].T)
            losses = optax.softmax_cross_entropy_with_integer_labels(
                jnp.concatenate([right, wrong], axis=-1), jnp.zeros(meant.shape, jnp.int32)
            )
            return jnp.sum(losses * meant) / jnp.sum(meant)

        grad_fn = jax.value_and_grad(loss_fn, argnums=(0, 1))
        loss, (d_params, d_rows) = grad_fn(params, acts.rows)
        emb = dj.apply_gradients(emb, acts, d_rows)
        updates, opt_state = tx.update(d_params, opt_state, params)
        return emb, optax.apply_updates(params, updates), opt_state, loss

    return train_step


def make_scores(model: Encoder):
    @jax.jit
    def scores(emb, params, ids):
        acts, _ = dj.lookup(emb, ids, train=False)
        place, meant = positions(ids["sequence"].row_splits)
        expected = model.apply(params, acts.rows["sequence"][place], meant, False)
        last = jnp.maximum(jnp.sum(meant, axis=-1) - 1, 0)
        final = jnp.take_along_axis(expected, last[:, None, None], axis=1)[:, 0]
        return final @ acts.rows["negatives"].T

    return scores


def evaluate(emb: dj.Embeddings, params: Any, data: Split, scores: Any) -> np.ndarray:
    """A score for every user and item: float32[users, items]."""
    catalogue, rows = dj.keys(data.items), []
    for group in packed([sequence[-LENGTH:] for sequence in data.users]):
        ids = {"sequence": ragged(group), "next": None, "negatives": catalogue}
        rows.append(np.asarray(scores(emb, params, ids))[: len(group)])
    return np.concatenate(rows)


def ranks(score: np.ndarray, data: Split, known: np.ndarray) -> np.ndarray:
    """Rank of each user's last item, from 0, among items that the user has not rated before.

    A tie counts as the worse. Items in no training sequence come last, for every method.
    """
    score = np.where(known[None], score, -np.inf)
    for user, sequence in enumerate(data.users):
        score[user, np.searchsorted(data.items, sequence)] = -np.inf
    column = np.searchsorted(data.items, data.last)
    own = np.take_along_axis(score, column[:, None], axis=1)
    return np.where(np.isfinite(own[:, 0]), np.sum(score >= own, axis=1) - 1, len(data.items))


def figures(rank: np.ndarray) -> tuple[float, float]:
    """HR@10 and NDCG@10; with one relevant item the gain of rank r is 1 / log2(r + 2)."""
    hit = rank < AT
    return float(hit.mean()), float(np.where(hit, 1 / np.log2(rank + 2.0), 0).mean())


def main(
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the sequences.")] = 10,
    seed: Annotated[int, typer.Option(help="Of everything that is random.")] = 0,
    data: Annotated[
        Path | None, typer.Option(help="ml-100k.inter or u.data; otherwise it is downloaded once.")
    ] = None,
) -> None:
    """Trains on all but the last item of each user, and ranks these."""
    try:
        sequences = split(data)
        if not sequences.users:
            raise DataError("no user has rated three items; give a larger file to --data.")
    except DataError as error:
        typer.echo(f"sequential: {error}", err=True)
        raise typer.Exit(1) from None
    table = dj.TableConfig(
        "items",
        dim=DIM,
        optimizer=dj.optimizers.adam(2e-3),
        initializer=dj.initializers.normal(0.05),
    )
    features = {name: dj.FeatureConfig(table) for name in ("sequence", "next", "negatives")}
    emb = dj.create(features, seed=seed)
    model, tx, rng = Encoder(), optax.adam(2e-3), np.random.default_rng(seed)
    shape = jnp.zeros((BATCH, LENGTH, DIM)), jnp.ones((BATCH, LENGTH), bool)
    params = model.init(jax.random.key(seed), *shape, False)
    opt_state, train_step, scores = tx.init(params), make_train_step(model, tx), make_scores(model)

    started, steps = time.perf_counter(), 0
    for epoch in range(epochs):
        losses = []
        for ids in dj.feed(train_batches(sequences, rng)):
            key = jax.random.key(steps)
            emb, params, opt_state, loss = train_step(emb, params, opt_state, ids, key)
            losses.append(loss)
            steps += 1
        if epoch % 5 == 4 or epoch == epochs - 1:
            print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}")

    stats = dj.stats(emb)["items"]
    known = dj.contains(emb, "items", sequences.items)
    counts = np.searchsorted(sequences.items, np.concatenate(sequences.users))
    popularity = np.bincount(counts, minlength=len(sequences.items)).astype(np.float32)
    ours = figures(ranks(evaluate(emb, params, sequences, scores), sequences, known))
    theirs = figures(ranks(np.tile(popularity, (len(sequences.users), 1)), sequences, known))
    seconds = time.perf_counter() - started
    padding = stats.padded / (stats.ids + stats.padded)
    print(f"{stats.rows} rows, {padding:.0%} of the places padded, {seconds:.0f} s")
    print(f"{'':12} HR@{AT}  NDCG@{AT}")
    for name, values in (("SASRec", ours), ("popularity", theirs)):
        print(f"{name:12} {values[0]:.3f}  {values[1]:.3f}")
    holds = all(mine > MARGIN * base for mine, base in zip(ours, theirs, strict=True))
    print(f"{'HOLDS' if holds else 'FAILS'}: both figures {MARGIN} times those of popularity")
    dj.close(emb)
    if not holds:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
