"""Under checkpoint: the replay changes nothing, and with the library's policy there is none."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.twin import Twin

IDS = np.array([1, 2, 2, -1], np.int32)
W = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)


def make_step(**checkpoint):
    """A step whose loss, lookup included, is rematerialised in the backward pass."""

    @jax.jit
    def step(emb, ids):
        @functools.partial(jax.checkpoint, **checkpoint)
        def loss(w, taps):
            acts, after = dj.lookup(emb, ids, taps=taps)
            return jnp.sum(jnp.sin(acts.rows @ w)), (acts, after)

        grad = jax.grad(loss, argnums=(0, 1), has_aux=True)
        (d_w, d_rows), (acts, after) = grad(jnp.asarray(W), dj.taps(emb, ids))
        return d_w, acts.rows, dj.apply_gradients(after, acts, d_rows)

    return step


def reference_grads(rows):
    """(d_w, d_rows) of sum(sin(rows @ w)) in float64."""
    slope = np.cos(rows @ W.astype(np.float64))
    return rows.T @ slope, slope @ W.T.astype(np.float64)


@pytest.mark.parametrize("policy", [None, "remat_policy", "everything_saveable"])
def test_rematerialised_steps_equal_the_dictionary(policy):
    options = {}
    if policy is not None:
        options["policy"] = getattr(dj, policy, None) or getattr(jax.checkpoint_policies, policy)
    step, twin = make_step(**options), Twin(optimizer="adam_row")

    for ids in (IDS, IDS + 1, IDS):
        d_w, rows, twin.emb = step(twin.emb, ids)
        expected = twin.oracle.lookup(ids)
        expected_d_w, d_rows = reference_grads(expected)
        twin.oracle.apply(ids, d_rows)
        np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(d_w, expected_d_w, rtol=1e-4, atol=1e-5)

    # A replay repeats no insertion and counts no id twice; how often it looks is its own affair.
    twin.oracle.counters["lookups"] = dj.stats(twin.emb)["items"].lookups
    twin.check()


def test_the_policy_leaves_one_native_lookup_a_step():
    step, twin = make_step(policy=dj.remat_policy), Twin()

    for _ in range(2):
        _, _, twin.emb = step(twin.emb, IDS)

    assert dj.stats(twin.emb)["items"].lookups == 2


def test_the_policy_saves_the_rows_and_nothing_the_user_computed():
    twin = Twin()

    def count_cosines(wrap):
        @wrap
        def loss(w):
            acts, _ = dj.lookup(twin.emb, IDS)
            return jnp.sum(jnp.cos(jnp.cos(acts.rows @ w)))

        return str(jax.make_jaxpr(jax.grad(loss))(jnp.asarray(W))).count(" cos ")

    plain = count_cosines(lambda f: f)
    saved = count_cosines(functools.partial(jax.checkpoint, policy=dj.remat_policy))
    # Of the two nested cosines the backward pass needs the inner one again.
    assert saved > plain


def test_a_rematerialised_find_is_right_and_changes_nothing():
    twin = Twin()
    twin.train(IDS)
    before = dj.stats(twin.emb)["items"]

    @jax.jit
    def grad(w, emb):
        @jax.checkpoint
        def loss(w):
            acts, _ = dj.lookup(emb, IDS, train=False)
            return jnp.sum(jnp.sin(acts.rows @ w))

        return jax.grad(loss)(w)

    d_w = grad(jnp.asarray(W), twin.emb)

    expected, _ = reference_grads(twin.oracle.values(IDS))
    np.testing.assert_allclose(d_w, expected, rtol=1e-4, atol=1e-5)
    after = dj.stats(twin.emb)["items"]
    assert (after.rows, after.ids, after.missing) == (before.rows, before.ids, 0)


def test_checkpointed_blocks_in_a_scan_equal_the_dictionary():
    twin = Twin()

    @jax.jit
    def run(emb, batches):
        def turn(emb, ids):
            @jax.checkpoint
            def loss(taps):
                acts, after = dj.lookup(emb, ids, taps=taps)
                return jnp.sum(jnp.sin(acts.rows)), (acts, after)

            d_rows, (acts, after) = jax.grad(loss, has_aux=True)(dj.taps(emb, ids))
            return dj.apply_gradients(after, acts, d_rows), None

        return jax.lax.scan(turn, emb, batches)[0]

    batches = np.stack([IDS, IDS + 1, IDS])
    twin.emb = run(twin.emb, batches)
    for ids in batches:
        twin.oracle.apply(ids, np.cos(twin.oracle.lookup(ids)))

    twin.oracle.counters["lookups"] = dj.stats(twin.emb)["items"].lookups
    twin.check()
