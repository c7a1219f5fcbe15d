"""Looking up for training: what comes out, in which shape, and what is there afterwards."""

import jax
import numpy as np
import pytest

import dynemb_jax as dj
from tests.oracle import row_init
from tests.oracle.pooling import COMBINERS, pool, pool_vjp
from tests.twin import Twin, assert_close, create, keys, random_grads, token_of

DIMS = (1, 3, 4, 7, 64, 127, 128, 1024, 1025, 2048)


def first_rows(ids, dim=4, name="items", seed=0):
    flat = np.asarray(ids).ravel()
    return row_init.Uniform()(seed, name, flat, dim).reshape(*np.shape(ids), dim)


def test_a_new_key_gets_its_first_row():
    emb = create(4, seed=3)

    acts, emb = dj.lookup(emb, np.array([5, 9]))

    np.testing.assert_array_equal(acts.rows, first_rows([5, 9], seed=3))
    assert dj.contains(emb, "items", np.array([5, 9])).all()


def test_a_known_key_gets_its_stored_row():
    emb = dj.assign(create(2), "items", np.array([5]), np.array([[1.5, -2.5]], np.float32))

    acts, _ = dj.lookup(emb, np.array([5]))

    np.testing.assert_array_equal(acts.rows, [[1.5, -2.5]])


def test_rows_are_float32_and_the_state_is_one_int32_token():
    acts, emb = dj.lookup(create(), np.array([1]))

    assert acts.rows.dtype == np.float32
    assert (token_of(emb).shape, token_of(emb).dtype) == ((1,), np.int32)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 3, 1), (1, 2, 1, 2)])
def test_the_shape_of_ids_gains_the_dim(shape):
    ids = np.arange(int(np.prod(shape))).reshape(shape)

    acts, _ = dj.lookup(create(3), ids)

    np.testing.assert_array_equal(acts.rows, first_rows(ids, 3))


@pytest.mark.parametrize("dim", DIMS)
def test_every_dim_steps_like_the_dictionary(dim):
    twin = Twin(dim, optimizer="adam")

    for step in range(2):
        twin.train([3, -1, 3, 2**40], seed=step)

    twin.check()
    twin.find([3, 4])


@pytest.mark.parametrize(
    ("combiner", "shape"),
    [(None, (0,)), (None, (0, 3)), ("sum", (0, 4)), ("mean", (4, 0)), ("sqrtn", (0, 0))],
)
def test_no_ids_are_a_batch_like_any_other(combiner, shape):
    emb = create(3, combiner=combiner)
    out_shape = (*shape, 3) if combiner is None else (*shape[:-1], 3)
    ids = np.zeros(shape, np.int32)

    acts, emb = dj.lookup(emb, ids)
    taps = dj.taps(emb, ids)
    emb = dj.apply_gradients(emb, acts, np.zeros(out_shape, np.float32))

    assert (acts.rows.shape, acts.rows.dtype) == (out_shape, np.float32)
    assert (taps.shape, taps.dtype) == (out_shape, np.float32)
    assert not np.asarray(acts.rows).any()
    stats = dj.stats(emb)["items"]
    assert (stats.rows, stats.ids, stats.updates, stats.updated_rows) == (0, 0, 1, 0)


def test_three_features_without_examples_step():
    table = dj.TableConfig("items", 2)
    combiners = {"a": None, "b": "mean", "c": "sum"}
    emb = dj.create({f: dj.FeatureConfig(table, c) for f, c in combiners.items()})
    ids = {"a": np.zeros(0, int), "b": np.zeros((0, 4), int), "c": np.zeros((0, 1), int)}

    acts, emb = dj.lookup(emb, ids)
    emb = dj.apply_gradients(emb, acts, {f: np.zeros((0, 2), np.float32) for f in ids})

    assert {f: rows.shape for f, rows in acts.rows.items()} == dict.fromkeys(ids, (0, 2))
    assert dj.stats(emb)["items"].rows == 0


def test_rows_come_out_in_the_nest_of_the_features():
    users, items = dj.TableConfig("users", 3), dj.TableConfig("items", 2)
    features = {"u": dj.FeatureConfig(users), "pair": (dj.FeatureConfig(items), [None])}
    features["pair"] = (dj.FeatureConfig(items), [dj.FeatureConfig(items, "sum")])
    ids = {"u": np.array([1]), "pair": (np.array([2]), [np.array([[2, 3]])])}

    acts, emb = dj.lookup(dj.create(features), ids)

    expected = {
        "u": first_rows([1], 3, "users"),
        "pair": (first_rows([2], 2), [first_rows([2, 3], 2).sum(0, keepdims=True)]),
    }
    assert jax.tree.structure(acts.rows) == jax.tree.structure(expected)
    jax.tree.map(assert_close, acts.rows, expected)
    assert tuple(emb.tables) in {("users", "items"), ("items", "users")}


def test_a_feature_given_none_is_not_looked_up():
    items = dj.TableConfig("items", 2)
    emb = dj.create({"a": dj.FeatureConfig(items), "b": dj.FeatureConfig(items)})

    acts, emb = dj.lookup(emb, {"a": np.array([1]), "b": None})
    grads = {"a": np.ones((1, 2), np.float32), "b": None}
    emb = dj.apply_gradients(emb, acts, grads)

    assert acts.rows["b"] is None
    stats = dj.stats(emb)["items"]
    assert (stats.ids, stats.updated_rows) == (1, 1)


def test_duplicates_share_one_row():
    twin = Twin()

    acts = twin.lookup([[8, 8], [9, 8]])

    np.testing.assert_array_equal(acts.rows[0, 0], acts.rows[1, 1])
    twin.check()


def test_two_features_of_one_table_share_rows_at_any_lengths():
    items = dj.TableConfig("items", 4, optimizer=dj.optimizers.sgd(1.0))
    users = dj.TableConfig("users", 4)
    # The features' order is not the tables' order.
    emb = dj.create(
        {
            "z_long": dj.FeatureConfig(items),
            "a_user": dj.FeatureConfig(users),
            "m_short": dj.FeatureConfig(items),
        }
    )
    ids = {"z_long": np.arange(1280) % 700, "a_user": np.arange(5), "m_short": np.arange(33) + 690}

    acts, emb = dj.lookup(emb, ids)

    assert_close(acts.rows["z_long"], first_rows(ids["z_long"]))
    assert_close(acts.rows["a_user"], first_rows(ids["a_user"], name="users"))
    assert_close(acts.rows["m_short"], first_rows(ids["m_short"]))
    assert dj.stats(emb)["items"].rows == 723


def test_two_tables_keep_two_rows_for_one_id():
    tables = {n: dj.TableConfig(n, 2, optimizer=dj.optimizers.sgd(1.0)) for n in ("a", "b")}
    emb = dj.create({n: dj.FeatureConfig(t) for n, t in tables.items()})
    ids = keys([1, 2**63 + 1, -1, 2**62])

    acts, emb = dj.lookup(emb, {"a": ids, "b": ids})
    grads = {"a": np.ones((4, 2), np.float32), "b": np.zeros((4, 2), np.float32)}
    emb = dj.apply_gradients(emb, acts, grads)

    assert_close(dj.get(emb, "a", ids).rows, np.asarray(acts.rows["a"]) - 1)
    np.testing.assert_array_equal(dj.get(emb, "b", ids).rows, acts.rows["b"])
    assert not np.array_equal(acts.rows["a"], acts.rows["b"])


@pytest.mark.parametrize("combiner", COMBINERS)
def test_a_bag_pools_to_the_combination_of_its_rows(combiner):
    ids = np.array([[1, 2, 2, 3], [4, 1, 1, 1]])

    acts, _ = dj.lookup(create(3, combiner=combiner), ids)

    assert_close(acts.rows, pool(combiner, first_rows(ids, 3)))


@pytest.mark.parametrize("combiner", COMBINERS)
def test_a_bag_passes_its_gradient_to_its_rows(combiner):
    ids = np.array([[1, 2, 2, 3], [4, 1, 1, 1]])
    emb = create(3, combiner=combiner, optimizer=dj.optimizers.sgd(1.0))
    grads = random_grads((2, 3))

    acts, emb = dj.lookup(emb, ids)
    emb = dj.apply_gradients(emb, acts, grads)

    expected = {k: first_rows([k], 3)[0] for k in (1, 2, 3, 4)}
    per_id, _ = pool_vjp(combiner, first_rows(ids, 3), grads)
    for key, grad in zip(ids.ravel(), per_id.reshape(-1, 3), strict=True):
        expected[int(key)] = expected[int(key)] - grad
    assert_close(dj.get(emb, "items", np.arange(1, 5)).rows, np.array(list(expected.values())))


def test_any_rank_of_bags_pools_over_the_last_axis():
    ids = np.arange(12).reshape(2, 3, 2)

    acts, _ = dj.lookup(create(3, combiner="sum"), ids)
    one_bag, _ = dj.lookup(create(3, combiner="sum"), ids[0, 0])

    assert_close(acts.rows, first_rows(ids, 3).sum(-2))
    np.testing.assert_array_equal(one_bag.rows, acts.rows[0, 0])


def test_two_lookups_of_a_new_key_before_an_update_agree():
    twin = Twin()

    first = twin.lookup([1, 2, 3])
    second = twin.lookup([3, 4, 3])

    np.testing.assert_array_equal(first.rows[2], second.rows[0])
    twin.check()


def test_tables_made_by_two_calls_are_independent():
    left, right = create(2), create(2)

    left = dj.assign(left, "items", np.array([1]), np.ones((1, 2), np.float32))

    assert dj.contains(left, "items", np.array([1])).all()
    assert not dj.contains(right, "items", np.array([1])).any()
