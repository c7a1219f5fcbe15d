"""Applying gradients: one exact update of each row of the batch, and of no other row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.twin import Twin, create, random_grads


def schedule(step):
    """Works on Python integers and on traced ones, under strict promotion."""
    return 0.5 ** (jnp.asarray(step, jnp.float32) + 1.0)


def test_rows_outside_the_batch_keep_their_bits():
    twin = Twin(optimizer="adam")
    twin.train([1, 2, 3])
    before = dj.get(twin.emb, "items", np.array([3]))

    twin.train([1, 2])

    after = dj.get(twin.emb, "items", np.array([3]))
    np.testing.assert_array_equal(before.rows, after.rows)
    np.testing.assert_array_equal(before.state["mu"], after.state["mu"])


def test_a_zero_gradient_is_still_an_update():
    twin = Twin(optimizer="adam_row")
    twin.train([1, 2])

    twin.train([1, 2], grads=np.zeros((2, 4), np.float32))

    twin.check()
    np.testing.assert_array_equal(dj.get(twin.emb, "items", np.array([1, 2])).state["count"], 2)


def test_not_a_number_stays_in_its_row():
    twin = Twin(optimizer="adam")
    twin.train([1, 2, 3])
    grads = random_grads((4, 4))
    grads[1] = np.nan

    twin.train([1, 2, 3, 1], grads=grads)

    rows = dj.get(twin.emb, "items", np.array([1, 2, 3])).rows
    assert np.isnan(rows[1]).all()
    twin.check([1, 3])


def test_the_group_counts_its_own_steps():
    rule = dj.optimizers.sgd(schedule)
    emb = create(1, optimizer=rule, initializer=dj.initializers.constant(0.0))

    for _ in range(3):
        acts, emb = dj.lookup(emb, np.array([1]))
        emb = dj.apply_gradients(emb, acts, np.ones((1, 1), np.float32))

    np.testing.assert_array_equal(dj.get(emb, "items", np.array([1])).rows, [[-0.875]])


@pytest.mark.parametrize(
    "rate", [0.25, schedule, jnp.float32(0.25)], ids=["number", "schedule", "array"]
)
def test_a_given_learning_rate_overrides_every_table(rate):
    features = {
        n: dj.FeatureConfig(dj.TableConfig(n, 1, optimizer=dj.optimizers.sgd(9.0))) for n in "ab"
    }
    emb = dj.create(features)
    acts, emb = dj.lookup(emb, dict.fromkeys("ab", np.array([1])))

    grads = dict.fromkeys("ab", np.ones((1, 1), np.float32))
    emb = dj.apply_gradients(emb, acts, grads, learning_rate=rate, step=1)

    for name in "ab":
        moved = dj.get(emb, name, np.array([1])).rows - np.asarray(acts.rows[name])
        np.testing.assert_allclose(moved, -0.25, rtol=1e-6)


def test_a_schedule_counts_updates_not_lookups():
    emb = create(1, optimizer=dj.optimizers.sgd(schedule))
    first, emb = dj.lookup(emb, np.array([1]))
    second, emb = dj.lookup(emb, np.array([2]))
    one = np.ones((1, 1), np.float32)

    emb = dj.apply_gradients(emb, first, one)
    emb = dj.apply_gradients(emb, second, one)

    moved = dj.get(emb, "items", np.array([2])).rows - np.asarray(second.rows)
    np.testing.assert_allclose(moved, [[-0.25]], rtol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_gradients_of_half_precision_are_taken_as_they_are(dtype):
    twin = Twin(optimizer="sgd")
    acts = twin.lookup([1, 2])
    grads = jnp.asarray(random_grads((2, 4)), dtype)

    twin.emb = dj.apply_gradients(twin.emb, acts, grads)
    twin.oracle.apply([1, 2], np.asarray(grads, np.float64))

    twin.check()


@pytest.mark.parametrize("optimizer", ["adam", "adam_row"])
def test_a_key_first_seen_late_follows_the_documented_correction(optimizer):
    twin = Twin(optimizer=optimizer)

    acts = twin.lookup([1, 2])
    twin.update(acts, [1, 2], random_grads((2, 4)), step=10**6)

    twin.check()


def test_a_step_may_be_traced():
    twin = Twin(optimizer="adam")
    acts = twin.lookup([1])
    grads = random_grads((1, 4))

    twin.emb = jax.jit(lambda e, a, s: dj.apply_gradients(e, a, grads, step=s))(twin.emb, acts, 41)
    twin.oracle.apply([1], grads, step=41)

    twin.check()


def test_several_batches_make_one_exact_update():
    twin = Twin(optimizer="adam_row")
    batches = [[1, 2, 3], [3, 4, 1], [9, 9, 9]]

    acts = [twin.lookup(ids) for ids in batches]
    grads = [random_grads((3, 4), seed) for seed in range(3)]
    twin.emb = dj.apply_gradients(twin.emb, acts, grads)
    twin.oracle.apply(np.concatenate(batches), np.concatenate(grads))

    twin.check()


def test_two_batches_may_be_applied_in_either_order():
    twin = Twin()
    first, second = twin.lookup([1, 2]), twin.lookup([2, 3])

    twin.update(second, [2, 3], random_grads((2, 4), 1))
    twin.update(first, [1, 2], random_grads((2, 4), 2))

    twin.check()


def test_duplicates_across_features_are_one_update():
    items = dj.TableConfig("items", 4, optimizer=dj.optimizers.adam(0.01, bias_correction="row"))
    emb = dj.create([dj.FeatureConfig(items), dj.FeatureConfig(items)])
    twin = Twin(optimizer="adam_row")
    ids, grads = [[1, 2, 3], [3, 1]], [random_grads((3, 4)), random_grads((2, 4), 1)]

    acts, emb = dj.lookup(emb, [np.array(i) for i in ids])
    emb = dj.apply_gradients(emb, acts, grads)
    twin.train(np.concatenate(ids), grads=np.concatenate(grads))

    expected = dj.get(twin.emb, "items", np.array([1, 2, 3]))
    got = dj.get(emb, "items", np.array([1, 2, 3]))
    np.testing.assert_array_equal(got.state["count"], [1, 1, 1])
    np.testing.assert_allclose(got.rows, expected.rows, rtol=1e-6)


def test_a_count_of_updates_is_an_exact_integer():
    emb = create(2, optimizer=dj.optimizers.adam(0.01, bias_correction="row"))
    zeros, count = np.zeros((1, 2), np.float32), np.array([2**24 + 1], np.int32)

    emb = dj.assign(emb, "items", [1], zeros, {"mu": zeros, "nu": zeros, "count": count})
    acts, emb = dj.lookup(emb, [1])
    emb = dj.apply_gradients(emb, acts, zeros)

    np.testing.assert_array_equal(dj.get(emb, "items", [1]).state["count"], count + 1)


def test_the_first_update_is_kept_when_an_imported_row_has_no_state():
    twin = Twin(optimizer="adam")
    twin.assign([1, 2], np.ones((2, 4), np.float32))

    twin.train([2, 1, 2])

    twin.check()


def test_an_untrainable_table_keeps_its_rows():
    emb = create(2, trainable=False, initializer=dj.initializers.constant(1.0))
    acts, emb = dj.lookup(emb, np.array([1]))

    emb = dj.apply_gradients(emb, acts, np.ones((1, 2), np.float32))

    acts, _ = dj.lookup(emb, np.array([1]), train=False)
    np.testing.assert_array_equal(acts.rows, [[1, 1]])


def test_many_duplicates_in_random_order_equal_the_dictionary():
    twin = Twin()
    ids = np.random.default_rng(0).zipf(1.3, 2000) % 300

    for step in range(2):
        twin.train(ids, seed=step)

    twin.check()
