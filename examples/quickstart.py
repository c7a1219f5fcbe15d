# SPDX-License-Identifier: Apache-2.0
"""The smallest training loop: synthetic clicks, string ids, and tables that grow."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import dynemb_jax as dj

BATCH, STEPS, TASTES = 256, 600, 4


def batches(rng: np.random.Generator):
    """String ids and clicks: users click items of their taste, and new users keep coming."""
    for step in range(STEPS):
        user = rng.integers(500 + 2 * step, size=BATCH)
        item = rng.integers(400, size=BATCH)
        clicked = rng.random(BATCH) < np.where(user % TASTES == item % TASTES, 0.95, 0.05)
        user, item = [f"user-{u}" for u in user], [f"item-{i}" for i in item]
        ids = {"user": dj.hash_keys(user), "item": dj.hash_keys(item)}
        yield ids, clicked.astype(np.float32)


users = dj.TableConfig("users", dim=16, optimizer=dj.optimizers.adam(0.02))
items = dj.TableConfig("items", dim=16, optimizer=dj.optimizers.adam(0.02))
emb = dj.create({"user": dj.FeatureConfig(users), "item": dj.FeatureConfig(items)}, seed=0)


@functools.partial(jax.jit, donate_argnames=("emb", "bias"))
def train_step(emb, bias, ids, clicked):
    acts, emb = dj.lookup(emb, ids)  # finds the rows; a new key gets one

    def loss_fn(bias, rows):
        logit = jnp.sum(rows["user"] * rows["item"], axis=-1) + bias
        return jnp.mean(jnp.logaddexp(0.0, logit) - clicked * logit)

    loss, (d_bias, d_rows) = jax.value_and_grad(loss_fn, argnums=(0, 1))(bias, acts.rows)
    emb = dj.apply_gradients(emb, acts, d_rows)  # one update a row, duplicates summed
    return emb, bias - 0.1 * d_bias, loss


bias, recent = jnp.zeros(()), []
# The next batches are made, hashed and put on the device while a step runs.
for step, (ids, clicked) in enumerate(dj.feed(batches(np.random.default_rng(0)))):
    emb, bias, loss = train_step(emb, bias, ids, clicked)
    recent.append(loss)
    if len(recent) == 100:
        rows = {name: table.rows for name, table in dj.stats(emb).items()}
        print(f"step {step + 1}: loss {np.mean(recent):.3f}, rows {rows}")
        recent.clear()
print(dj.stats(emb)["users"])
