"""Under grad: rows through taps or as arguments, weights through the pooling rule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.oracle.pooling import COMBINERS, pool_vjp
from tests.twin import Twin, assert_close, create, random_grads

IDS = np.array([[1, 2, 2, 3], [4, 1, 9, 9]], np.int32)
LENGTHS = np.array([4, 2], np.int32)
MASK = np.arange(4)[None, :] < LENGTHS[:, None]
WEIGHTS = np.array([[1.0, 2.0, -0.5, 0.5], [0.25, 3.0, 7.0, 7.0]], np.float32)
CT = random_grads((2, 3), 3)


def tapped_loss(taps, emb, ids):
    acts, emb = dj.lookup(emb, ids, taps=taps)
    return jnp.sum(acts.rows**2) / 2, (acts, emb)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("combiner", [None, *COMBINERS])
def test_the_gradient_of_taps_is_the_gradient_of_rows(combiner, jit):
    emb = create(3, combiner=combiner)
    grad = jax.grad(tapped_loss, has_aux=True)

    d_taps, (acts, emb) = (jax.jit(grad) if jit else grad)(dj.taps(emb, IDS), emb, IDS)

    # d(sum rows**2 / 2) / d rows = rows.
    np.testing.assert_array_equal(d_taps, acts.rows)
    stats = dj.stats(emb)["items"]
    assert (stats.lookups, stats.ids, stats.inserted) == (1, 8, 5)


def test_taps_work_without_training_too():
    emb = dj.assign(create(3), "items", [1], np.array([[1, 2, 3]], np.float32))

    def loss(taps):
        acts, _ = dj.lookup(emb, np.array([1, 5]), train=False, taps=taps)
        return jnp.sum(acts.rows**2) / 2

    d_taps = jax.grad(loss)(dj.taps(emb, np.array([1, 5])))

    np.testing.assert_array_equal(d_taps, [[1, 2, 3], [0, 0, 0]])


def test_a_step_with_taps_equals_a_step_with_rows_as_arguments():
    with_taps, with_rows = Twin(), Twin()
    ids = np.array([1, 2, 2], np.int32)

    @jax.jit
    def tap_step(emb):
        d_rows, (acts, emb) = jax.grad(tapped_loss, has_aux=True)(dj.taps(emb, ids), emb, ids)
        return dj.apply_gradients(emb, acts, d_rows)

    @jax.jit
    def row_step(emb):
        acts, emb = dj.lookup(emb, ids)
        d_rows = jax.grad(lambda rows: jnp.sum(rows**2) / 2)(acts.rows)
        return dj.apply_gradients(emb, acts, d_rows)

    for _ in range(3):
        with_taps.emb, with_rows.emb = tap_step(with_taps.emb), row_step(with_rows.emb)
        rows = with_rows.oracle.lookup(ids)
        with_rows.oracle.apply(ids, rows)
        with_taps.oracle.lookup(ids)
        with_taps.oracle.apply(ids, rows)

    with_taps.check()
    with_rows.check()


@pytest.mark.parametrize("train", [True, False], ids=["train", "find"])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_weights_receive_the_derivative_of_the_pooling(combiner, train):
    emb = create(3, combiner=combiner)
    rows = np.asarray(dj.lookup(create(3), IDS)[0].rows)
    if not train:
        emb = dj.assign(emb, "items", IDS.ravel(), rows.reshape(-1, 3))

    def loss(weights):
        padded = dj.Padded(IDS, lengths=LENGTHS, weights=weights)
        acts, after = dj.lookup(emb, padded, train=train)
        return jnp.sum(acts.rows * CT), after

    d_weights, _ = jax.grad(loss, has_aux=True)(jnp.asarray(WEIGHTS))

    _, expected = pool_vjp(combiner, rows, CT, MASK, WEIGHTS)
    assert_close(d_weights, expected)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_taps_and_weights_are_differentiated_together(combiner):
    emb = create(3, combiner=combiner)

    @jax.jit
    def grads(taps, weights, emb):
        def loss(taps, weights):
            padded = dj.Padded(IDS, mask=MASK, weights=weights)
            acts, after = dj.lookup(emb, padded, taps=taps)
            return jnp.sum(acts.rows * CT), (acts, after)

        return jax.grad(loss, argnums=(0, 1), has_aux=True)(taps, weights)

    (d_taps, d_weights), (_, emb) = grads(dj.taps(emb, IDS), jnp.asarray(WEIGHTS), emb)

    rows = dj.get(emb, "items", IDS).rows * MASK[..., None]
    _, expected = pool_vjp(combiner, rows, CT, MASK, WEIGHTS)
    np.testing.assert_array_equal(d_taps, CT)
    assert_close(d_weights, expected)
    assert dj.stats(emb)["items"].lookups == 1


@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
def test_bags_whose_weights_cancel_have_no_gradient(combiner):
    emb = create(3, combiner=combiner)

    def loss(weights):
        acts, after = dj.lookup(emb, dj.Padded(IDS, mask=np.ones((2, 4), bool), weights=weights))
        return jnp.sum(acts.rows * CT), after

    d_weights, _ = jax.grad(loss, has_aux=True)(jnp.zeros((2, 4)))

    assert not np.asarray(d_weights).any()


def test_taps_have_the_nest_and_shapes_of_rows():
    features = {
        "a": dj.FeatureConfig(dj.TableConfig("a", 2)),
        "b": [
            dj.FeatureConfig(dj.TableConfig("b", 3), "sum"),
            dj.FeatureConfig(dj.TableConfig("a", 2)),
        ],
    }
    emb = dj.create(features)
    ids = {"a": np.zeros((5,), int), "b": [np.zeros((2, 4), int), None]}

    taps = dj.taps(emb, ids)
    acts, _ = dj.lookup(emb, ids)

    assert jax.tree.structure(taps) == jax.tree.structure(acts.rows)
    assert [t.shape for t in jax.tree.leaves(taps)] == [(5, 2), (2, 3)]
    assert not any(np.asarray(t).any() for t in jax.tree.leaves(taps))


def test_a_loss_that_ignores_its_rows_has_zero_gradient_and_still_inserts():
    emb = create(3)

    def loss(taps):
        _, after = dj.lookup(emb, IDS, taps=taps)
        return jnp.zeros(()), after

    d_taps, after = jax.grad(loss, has_aux=True)(dj.taps(emb, IDS))

    assert not np.asarray(d_taps).any()
    assert dj.stats(after)["items"].rows == 5


def test_accumulated_gradients_apply_as_one_step():
    twin = Twin(optimizer="adam")

    @jax.jit
    def step(emb, micro):
        acts, d_rows = [], []
        for ids in micro:
            d, (a, emb) = jax.grad(tapped_loss, has_aux=True)(dj.taps(emb, ids), emb, ids)
            acts.append(a)
            d_rows.append(d)
        return dj.apply_gradients(emb, acts, d_rows)

    micro = np.array([[1, 2, 2], [2, 3, 1]], np.int32)
    twin.emb = step(twin.emb, micro)
    rows = np.concatenate([twin.oracle.lookup(ids) for ids in micro])
    twin.oracle.apply(micro, rows)

    twin.check()
