# SPDX-License-Identifier: Apache-2.0
"""The model and its jitted steps; they do not know which kind of table they run on."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

DENSE_LEARNING_RATE = 3e-3


class Batch(NamedTuple):
    """One batch; `weight` is 0 where a row only fills the batch up."""

    ids: dict[str, Any]  # the nest of ids that the tables take
    liked_share: Any  # float32[batch], of NumPy outside the steps and of JAX inside
    label: Any  # float32[batch]
    weight: Any  # float32[batch]


class Ranker(nnx.Module):
    """A small DLRM: dot products of all pairs of embeddings, and an MLP over everything."""

    def __init__(self, dim: int, hidden: int, *, rngs: nnx.Rngs):
        inputs = 3 * dim + 3 + 1  # embeddings, their three dot products, the dense feature
        self.hidden = nnx.Linear(inputs, hidden, rngs=rngs)
        self.out = nnx.Linear(hidden, 1, rngs=rngs)

    def __call__(self, rows: dict[str, jax.Array], liked_share: jax.Array) -> jax.Array:
        """Logits of a like.

        Args:
            rows: float32[..., dim] of user, item and history, of shapes that broadcast.
            liked_share: float32[...].
        """
        user, item, history = jnp.broadcast_arrays(rows["user"], rows["item"], rows["history"])
        pairs = itertools.combinations((user, item, history), 2)
        dots = jnp.stack([jnp.sum(a * b, axis=-1) for a, b in pairs], axis=-1)
        dense = jnp.broadcast_to(liked_share, user.shape[:-1])[..., None]
        features = jnp.concatenate([user, item, history, dots, dense], axis=-1)
        deep = self.out(nnx.relu(self.hidden(features)))[..., 0]
        # The first column doubles as a bias of the user and of the item: it learns quickly what
        # the MLP would need many steps for.
        return deep + jnp.sum(dots, axis=-1) + user[..., 0] + item[..., 0]


class Steps(NamedTuple):
    """The three jitted functions of one kind of table, and the state of the dense part."""

    train: Callable[..., Any]
    predict: Callable[..., jax.Array]
    rank: Callable[..., jax.Array]
    init: Callable[[int], tuple[Any, Any]]


@functools.cache
def make_steps(embed: ModuleType, dim: int, hidden: int = 64) -> Steps:
    """Builds the steps on `embed`: `dynemb_jax`, or a module with the same verbs."""
    graph = nnx.graphdef(Ranker(dim, hidden, rngs=nnx.Rngs(0)))
    optimizer = optax.adam(DENSE_LEARNING_RATE)

    def init(seed: int) -> tuple[Any, Any]:
        params = nnx.state(Ranker(dim, hidden, rngs=nnx.Rngs(seed)))
        return params, optimizer.init(params)

    def logits(params: Any, rows: dict[str, jax.Array], liked_share: jax.Array) -> jax.Array:
        return nnx.merge(graph, params)(rows, liked_share)

    @functools.partial(jax.jit, donate_argnames=("emb", "params", "opt_state"))
    def train(emb: Any, params: Any, opt_state: Any, batch: Batch):
        acts, emb = embed.lookup(emb, batch.ids)  # new keys get their rows here

        def loss_fn(params: Any, rows: dict[str, jax.Array]) -> jax.Array:
            losses = optax.sigmoid_binary_cross_entropy(
                logits(params, rows, batch.liked_share), batch.label
            )
            return jnp.sum(losses * batch.weight) / jnp.sum(batch.weight)

        loss, (d_params, d_rows) = jax.value_and_grad(loss_fn, argnums=(0, 1))(params, acts.rows)
        emb = embed.apply_gradients(emb, acts, d_rows)
        updates, opt_state = optimizer.update(d_params, opt_state, params)
        return emb, optax.apply_updates(params, updates), opt_state, loss

    @jax.jit
    def predict(emb: Any, params: Any, batch: Batch) -> jax.Array:
        acts, _ = embed.lookup(emb, batch.ids, train=False)  # inserts and changes nothing
        return logits(params, acts.rows, batch.liked_share)

    @jax.jit
    def rank(emb: Any, params: Any, batch: Batch) -> jax.Array:
        """Logits of every candidate; `batch.ids["item"]` is [batch, candidates]."""
        acts, _ = embed.lookup(emb, batch.ids, train=False)
        rows = dict(acts.rows)
        rows["user"], rows["history"] = rows["user"][:, None], rows["history"][:, None]
        return logits(params, rows, batch.liked_share[:, None])

    return Steps(train, predict, rank, init)
