# SPDX-License-Identifier: Apache-2.0
"""The recommender of movielens.py as a Linen module: same data, one epoch, seconds.

The tables sit inside the model, and learn beside an optax optimizer that sees the dense
parameters only.
"""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Annotated, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import typer
from movielens_data import DataError, Interactions, batches, load
from movielens_metrics import auc

import dynemb_jax as dj
import dynemb_jax.flax.linen as djlinen

BATCH, DIM, HISTORY_LENGTH, TAIL_SHARE = 128, 16, 20, 0.1


class Ranker(nn.Module):
    """A small DLRM over user, item and the mean of the user's last items."""

    embed: djlinen.DynamicEmbed

    @nn.compact
    def __call__(self, ids: Any, liked_share: jax.Array, train: bool = True) -> jax.Array:
        rows = self.embed(ids, train)
        user, item, history = rows["user"], rows["item"], rows["history"]
        pairs = itertools.combinations((user, item, history), 2)
        dots = jnp.stack([jnp.sum(a * b, axis=-1) for a, b in pairs], axis=-1)
        inputs = jnp.concatenate([user, item, history, dots, liked_share[:, None]], axis=-1)
        deep = nn.Dense(1)(nn.relu(nn.Dense(64)(inputs)))[:, 0]
        return deep + jnp.sum(dots, axis=-1) + user[:, 0] + item[:, 0]


def create() -> dj.Embeddings:
    """Empty tables of users and items; the history shares the table of the items."""
    shared = {
        "dim": DIM,
        "optimizer": dj.optimizers.adagrad(0.5),
        "initializer": dj.initializers.uniform(0.02),
    }
    users, items = dj.TableConfig("users", **shared), dj.TableConfig("items", **shared)
    return dj.create(
        {
            "user": dj.FeatureConfig(users),
            "item": dj.FeatureConfig(items),
            "history": dj.FeatureConfig(items, combiner="mean"),
        }
    )


def feed(data: Interactions):
    """Batches of (ids, liked_share, label, weight)."""
    for part, weight in batches(data, BATCH):
        history = dj.Padded(dj.keys(part.history), lengths=part.history_length)
        ids = {"user": dj.keys(part.user), "item": dj.keys(part.item), "history": history}
        yield ids, part.liked_share, part.label, weight


def make_train_step(model: Ranker, tx: optax.GradientTransformation):
    @functools.partial(jax.jit, donate_argnames=("params", "tables", "opt_state"))
    def train_step(params, tables, opt_state, batch):
        ids, liked_share, label, weight = batch
        inputs = (ids, liked_share)
        taps = djlinen.make_taps(model, {"params": params, "dynemb": tables}, *inputs)

        def loss_fn(params, taps):
            variables = {"params": params, "dynemb": tables, "dynemb_taps": taps}
            logits, changed = model.apply(variables, *inputs, mutable="dynemb")
            losses = optax.sigmoid_binary_cross_entropy(logits, label)
            return jnp.sum(losses * weight) / jnp.sum(weight), changed["dynemb"]

        grad_fn = jax.value_and_grad(loss_fn, argnums=(0, 1), has_aux=True)
        (loss, changed), (d_params, d_taps) = grad_fn(params, taps)
        updates, opt_state = tx.update(d_params, opt_state, params)
        changed = djlinen.apply_gradients(changed, d_taps)
        return optax.apply_updates(params, updates), changed, opt_state, loss

    return train_step


def main(
    data: Annotated[
        Path | None, typer.Option(help="ml-100k.inter or u.data; otherwise it is downloaded once.")
    ] = None,
) -> None:
    """Trains on the first nine tenths of the ratings, and predicts the last tenth."""
    try:
        ratings = load(data, history_length=HISTORY_LENGTH)
    except DataError as error:
        typer.echo(f"movielens: {error}", err=True)
        raise typer.Exit(1) from None
    split = int(len(ratings) * (1 - TAIL_SHARE))
    train, tail = ratings[:split], ratings[split:]
    train = train[np.random.default_rng(0).permutation(len(train))]

    emb, tx = create(), optax.adam(3e-3)
    model = Ranker(djlinen.DynamicEmbed(emb))
    variables = model.init(jax.random.key(0), *next(feed(train))[:2])
    params, tables = variables["params"], variables["dynemb"]
    opt_state, train_step = tx.init(params), make_train_step(model, tx)
    losses = []
    for batch in dj.feed(feed(train)):
        params, tables, opt_state, loss = train_step(params, tables, opt_state, batch)
        losses.append(loss)

    predict = jax.jit(functools.partial(model.apply, train=False))
    variables = {"params": params, "dynemb": tables}
    scores = [predict(variables, ids, share) for ids, share, _, _ in feed(tail)]
    rows = {n: t.rows for n, t in dj.stats(model.embed.embeddings(tables["embed"])).items()}
    print(f"loss {np.mean(losses):.3f}, rows {rows}")
    print(f"AUC of the tail {auc(tail.label, np.concatenate(scores)[: len(tail)]):.3f}")
    dj.close(emb)


if __name__ == "__main__":
    typer.run(main)
