"""Bags of any lengths behind each other: what they give, what they touch, what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.oracle import ragged, row_init
from tests.oracle.pooling import COMBINERS
from tests.twin import Twin, assert_close, create, keys, random_grads

# Bags of 2, 0, 3 and 0 ids; 9s are padding.
IDS = np.array([1, 2, 3, 1, 2, 9, 9, 9])
SPLITS = np.array([0, 2, 2, 5, 5], np.int32)
USED = np.arange(8) < 5
ALL = [None, *COMBINERS]


def rows_of(ids, dim=3, name="items"):
    flat = np.asarray(ids).ravel()
    return row_init.Uniform()(0, name, flat, dim).reshape(*np.shape(ids), dim)


def empty_cases():
    """Splits and capacities without any id."""
    return [([0], 0), ([0], 4), ([0, 0, 0, 0, 0], 0), ([0, 0, 0, 0, 0], 3)]


def test_padding_behind_the_last_split_touches_nothing():
    emb = create(3, optimizer=dj.optimizers.sgd(1.0))

    acts, emb = dj.lookup(emb, dj.Ragged(IDS, SPLITS))
    emb = dj.apply_gradients(emb, acts, np.ones((8, 3), np.float32))

    assert_close(acts.rows, rows_of(IDS) * USED[:, None])
    stats = dj.stats(emb)["items"]
    assert (stats.rows, stats.ids, stats.padded, stats.hits) == (3, 5, 3, 2)
    assert not dj.contains(emb, "items", np.array([9])).any()
    counts = np.array([[2], [2], [1]])
    assert_close(dj.get(emb, "items", np.array([1, 2, 3])).rows, rows_of([1, 2, 3]) - counts)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_bags_pool_and_empty_ones_give_zero_and_take_no_gradient(combiner):
    emb = create(3, combiner=combiner, optimizer=dj.optimizers.sgd(1.0))
    grads = random_grads((4, 3))

    acts, emb = dj.lookup(emb, dj.Ragged(IDS, SPLITS))
    emb = dj.apply_gradients(emb, acts, grads)

    assert not np.asarray(acts.rows)[[1, 3]].any()
    assert_close(acts.rows, ragged.pool(combiner, rows_of(IDS), SPLITS))
    per_id, _ = ragged.pool_vjp(combiner, rows_of(IDS), grads, SPLITS)
    expected = rows_of([1, 2, 3])
    for key, grad in zip(IDS[USED], per_id[USED], strict=True):
        expected[key - 1] -= grad
    assert_close(dj.get(emb, "items", np.array([1, 2, 3])).rows, expected)
    assert dj.stats(emb)["items"].rows == 3


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_weights_pool_and_learn_by_their_formula_whatever_their_sign(combiner, jit):
    emb = create(3, combiner=combiner, optimizer=dj.optimizers.sgd(1.0))
    weights = np.array([0.5, -2.0, 1.0, 0.25, 3.0, 7.0, 7.0, 7.0], np.float32)
    ct = random_grads((4, 3), 1)

    def loss(weights, emb):
        acts, emb = dj.lookup(emb, dj.Ragged(keys(IDS), SPLITS, weights))
        return jnp.sum(acts.rows * ct), (acts, emb)

    grad = jax.grad(loss, has_aux=True)
    d_weights, (acts, emb) = (jax.jit(grad) if jit else grad)(jnp.asarray(weights), emb)
    emb = dj.apply_gradients(emb, acts, ct)

    assert_close(acts.rows, ragged.pool(combiner, rows_of(IDS), SPLITS, weights))
    per_id, expected = ragged.pool_vjp(combiner, rows_of(IDS), ct, SPLITS, weights)
    assert_close(d_weights, expected, what="weights")
    after = rows_of([1, 2, 3])
    np.subtract.at(after, IDS[USED] - 1, per_id[USED])
    assert_close(dj.get(emb, "items", np.array([1, 2, 3])).rows, after)


def test_weights_that_sum_to_zero_make_a_mean_of_zero():
    weights = np.array([1.5, -1.5], np.float32)

    acts, emb = dj.lookup(create(3, combiner="mean"), dj.Ragged(np.array([1, 2]), [0, 2], weights))
    emb = dj.apply_gradients(emb, acts, np.ones((1, 3), np.float32))

    assert not np.asarray(acts.rows).any()
    np.testing.assert_array_equal(dj.get(emb, "items", np.array([1, 2])).rows, rows_of([1, 2]))


def test_a_nan_weight_of_padding_is_never_read():
    weights = jnp.asarray(np.where(USED, 1.0, np.nan).astype(np.float32))
    emb = create(3, combiner="mean")

    def loss(weights):
        acts, after = dj.lookup(emb, dj.Ragged(IDS, SPLITS, weights))
        return jnp.sum(acts.rows), (acts, after)

    d_weights, (acts, emb) = jax.grad(loss, has_aux=True)(weights)
    emb = dj.apply_gradients(emb, acts, acts.rows)
    found, emb = dj.lookup(emb, dj.Ragged(IDS, SPLITS, weights))

    assert_close(acts.rows, ragged.pool("mean", rows_of(IDS), SPLITS))
    assert np.isfinite(d_weights).all()
    assert np.isfinite(found.rows).all()


@pytest.mark.parametrize("train", [True, False], ids=["train", "find"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize(("splits", "capacity"), empty_cases())
@pytest.mark.parametrize("combiner", ALL)
def test_no_ids_work_forward_backward_and_in_a_step(combiner, splits, capacity, weighted, train):
    if weighted and combiner is None:
        return
    emb = create(3, combiner=combiner)
    ids = np.full(capacity, 5, np.int32)
    weights = jnp.ones(capacity) if weighted else None

    def loss(weights, taps):
        given = dj.Ragged(ids, np.array(splits, np.int32), weights)
        acts, after = dj.lookup(emb, given, taps=taps, train=train)
        return jnp.sum(acts.rows), (acts, after)

    taps = dj.taps(emb, dj.Ragged(ids, splits, weights))
    run = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True, allow_int=True))
    (d_weights, d_taps), (acts, emb) = run(weights, taps)
    if train:
        emb = dj.apply_gradients(emb, acts, d_taps)

    assert acts.rows.shape == (capacity if combiner is None else len(splits) - 1, 3)
    assert acts.rows.dtype == d_taps.dtype == jnp.float32
    assert not np.asarray(acts.rows).any()
    assert weights is None or (d_weights.shape == (capacity,) and not np.asarray(d_weights).any())
    stats = dj.stats(emb)["items"]
    assert (stats.rows, stats.ids, stats.padded) == (0, 0, capacity)
    assert stats.updates == int(train)


def test_no_bags_in_three_features_of_two_tables():
    items, users = dj.TableConfig("items", 3), dj.TableConfig("users", 5)
    emb = dj.create(
        [
            dj.FeatureConfig(items, "mean"),
            dj.FeatureConfig(users),
            dj.FeatureConfig(items, "sqrtn"),
        ]
    )
    nothing = dj.Ragged.from_lists([])

    acts, emb = dj.lookup(emb, [nothing, nothing, nothing])
    emb = dj.apply_gradients(emb, acts, acts.rows)

    assert [row.shape for row in acts.rows] == [(0, 3), (0, 5), (0, 3)]
    assert [s.rows for s in dj.stats(emb).values()] == [0, 0]


def test_every_output_comes_under_its_own_feature_beside_padded_and_plain_ids():
    items = dj.TableConfig("items", 3, optimizer=dj.optimizers.sgd(1.0))
    users = dj.TableConfig("users", 3, optimizer=dj.optimizers.sgd(1.0))
    emb = dj.create(
        {
            "ragged": dj.FeatureConfig(items, "sum"),
            "plain": dj.FeatureConfig(items),
            "padded": dj.FeatureConfig(users, "sum"),
            "other": dj.FeatureConfig(users),
        }
    )
    ids = {
        "ragged": dj.Ragged(IDS, SPLITS),
        "plain": np.array([[3, 4]]),
        "padded": dj.Padded(np.array([[1, 9], [2, 3]]), lengths=np.array([1, 2])),
        "other": dj.Ragged.from_lists([[3], [], [1]], capacity=4),
    }

    acts, emb = dj.lookup(emb, ids)
    grads = {name: np.full(row.shape, 2.0, np.float32) for name, row in acts.rows.items()}
    emb = dj.apply_gradients(emb, acts, grads)

    first, second = rows_of([1, 2, 3, 4]), rows_of([1, 2, 3], name="users")
    assert_close(acts.rows["ragged"], ragged.pool("sum", rows_of(IDS), SPLITS))
    assert_close(acts.rows["plain"], first[[2, 3]][None])
    assert_close(acts.rows["padded"], np.stack([second[0], second[1] + second[2]]))
    assert_close(acts.rows["other"], np.stack([second[2], second[0], 0 * second[0], 0 * second[0]]))
    assert_close(
        dj.get(emb, "items", np.arange(1, 5)).rows, first - 2 * np.array([[2], [2], [2], [1]])
    )
    assert_close(dj.get(emb, "users", np.arange(1, 4)).rows, second - 2 * np.array([[2], [1], [2]]))


def test_long_and_short_bags_of_one_table_share_one_update():
    """33 and 1,280 ids with Adam: duplicates across features count once."""
    twin = Twin(optimizer="adam_row", initializer="uniform")
    rng = np.random.default_rng(0)
    short, long = rng.integers(0, 50, 33), rng.integers(0, 50, 1280)
    sizes = rng.multinomial(1280, np.ones(7) / 7)
    splits = np.concatenate([[0], np.cumsum(sizes)])
    table = dj.TableConfig("items", 4, optimizer=dj.optimizers.adam(0.01, bias_correction="row"))
    emb = dj.create([dj.FeatureConfig(table, "mean"), dj.FeatureConfig(table, "sum")])
    grads = [random_grads((7, 4)), random_grads((2, 4), 1)]

    acts, emb = dj.lookup(emb, [dj.Ragged(long, splits), dj.Ragged(short, [0, 3, 33])])
    emb = dj.apply_gradients(emb, acts, grads)

    both = np.concatenate([long, short])
    first = twin.oracle.lookup(both).reshape(-1, 4)
    assert_close(acts.rows[0], ragged.pool("mean", first[:1280], splits))
    assert_close(acts.rows[1], ragged.pool("sum", first[1280:], [0, 3, 33]), atol=1e-5)
    per_id = [
        ragged.pool_vjp("mean", first[:1280], grads[0], splits)[0],
        ragged.pool_vjp("sum", first[1280:], grads[1], [0, 3, 33])[0],
    ]
    keys_of_table = np.arange(50)
    assert dj.stats(emb)["items"].updated_rows == len(np.unique(both))
    check_adam(emb, keys_of_table, both, np.concatenate(per_id))


def check_adam(emb, ids, looked_up, per_id):
    """The moments of the first update: (1 - b1) g and (1 - b2) g^2 of the summed gradients."""
    total = np.zeros((len(ids), 4))
    np.add.at(total, looked_up, per_id)
    state = dj.get(emb, "items", ids).state

    assert_close(state["mu"], 0.1 * total, rtol=1e-4)
    assert_close(state["nu"], 0.001 * total**2, rtol=1e-4)


def test_find_gives_missing_rows_to_ids_and_zeros_to_padding():
    emb = create(3, missing_row=7.0)

    acts, emb = dj.lookup(emb, dj.Ragged(IDS, SPLITS), train=False)
    pooled, other = dj.lookup(
        create(3, combiner="mean", missing_row=7.0), dj.Ragged(IDS, SPLITS), train=False
    )

    np.testing.assert_array_equal(acts.rows, np.where(USED[:, None], np.full(3, 7.0), 0.0))
    np.testing.assert_array_equal(pooled.rows, np.array([[7.0], [0], [7], [0]]) * np.ones(3))
    for stats in (dj.stats(emb)["items"], dj.stats(other)["items"]):
        assert (stats.rows, stats.missing, stats.padded) == (0, 5, 3)


@pytest.mark.parametrize("train", [True, False], ids=["train", "find"])
@pytest.mark.parametrize("combiner", ALL)
def test_many_bags_of_many_lengths_equal_the_dictionary(combiner, train):
    """Lengths around the sizes of the engine's blocks, with work for several threads."""
    rng = np.random.default_rng(0)
    sizes = np.concatenate([[0, 1, 63, 64, 65, 511, 512, 513, 3000, 0], rng.integers(0, 9, 3000)])
    splits = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    ids = rng.integers(0, 500, int(splits[-1]) + 777)
    emb = create(3, combiner=combiner)
    _, emb = dj.lookup(emb, dj.Ragged(np.arange(500), np.array([0, 500], np.int32)))

    acts, emb = dj.lookup(emb, dj.Ragged(ids, splits), train=train)

    values = rows_of(ids)
    values[splits[-1] :] = 0
    expected = values if combiner is None else ragged.pool(combiner, values, splits)
    assert_close(acts.rows, expected, atol=1e-5)
    stats = dj.stats(emb)["items"]
    assert (stats.hits if train else stats.found) == splits[-1]
    assert stats.padded == 777


@pytest.mark.parametrize("train", [True, False], ids=["train", "find"])
@pytest.mark.parametrize("combiner", ALL)
def test_leading_axes_are_batches_with_splits_of_their_own(combiner, train):
    ids = np.array([[1, 2, 3, 9], [9, 9, 9, 9], [4, 5, 1, 2]])
    splits = np.array([[0, 1, 3], [0, 0, 0], [0, 4, 4]])
    emb = create(3, combiner=combiner, missing_row="initializer")

    acts, emb = dj.lookup(emb, dj.Ragged(ids, splits), train=train)

    used = np.arange(4) < splits[:, -1:]
    expected = rows_of(ids) * used[..., None]
    if combiner is not None:
        expected = [ragged.pool(combiner, v, s) for v, s in zip(expected, splits, strict=True)]
    assert_close(acts.rows, np.stack(expected))
    assert dj.stats(emb)["items"].padded == 5
