"""Padding is said beside the ids: padded places are never looked at."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.oracle import row_init
from tests.oracle.pooling import COMBINERS, pool, pool_vjp
from tests.twin import assert_close, create, keys, random_grads

IDS = np.array([[1, 2, 9, 9], [9, 9, 9, 9], [3, 1, 2, 9], [9, 9, 9, 9]])
LENGTHS = np.array([2, 0, 3, 0], np.int32)
MASK = np.arange(4)[None, :] < LENGTHS[:, None]


def rows_of(ids, dim=3):
    flat = np.asarray(ids).ravel()
    return row_init.Uniform()(0, "items", flat, dim).reshape(*np.shape(ids), dim)


@pytest.mark.parametrize("padding", [{"lengths": LENGTHS}, {"mask": MASK}], ids=["lengths", "mask"])
def test_padded_places_insert_nothing_and_are_counted_apart(padding):
    acts, emb = dj.lookup(create(3, combiner="sum"), dj.Padded(IDS, **padding))

    stats = dj.stats(emb)["items"]
    assert (stats.rows, stats.ids, stats.padded, stats.hits) == (3, 5, 11, 2)
    assert not dj.contains(emb, "items", np.array([9])).any()
    assert_close(acts.rows, pool("sum", rows_of(IDS), MASK))


@pytest.mark.parametrize("combiner", COMBINERS)
def test_empty_bags_give_zero_and_take_no_gradient(combiner):
    emb = create(3, combiner=combiner, optimizer=dj.optimizers.sgd(1.0))
    grads = random_grads((4, 3))

    acts, emb = dj.lookup(emb, dj.Padded(IDS, lengths=LENGTHS))
    emb = dj.apply_gradients(emb, acts, grads)

    assert not np.asarray(acts.rows)[[1, 3]].any()
    assert_close(acts.rows, pool(combiner, rows_of(IDS), MASK))
    per_id, _ = pool_vjp(combiner, rows_of(IDS), grads, MASK)
    expected = rows_of([1, 2, 3])
    for key, grad in zip(IDS[MASK], per_id[MASK], strict=True):
        expected[key - 1] -= grad
    assert_close(dj.get(emb, "items", np.array([1, 2, 3])).rows, expected)
    assert dj.stats(emb)["items"].rows == 3


@pytest.mark.parametrize("combiner", COMBINERS)
def test_weights_pool_by_their_formula_whatever_their_sign(combiner):
    weights = np.array(
        [[0.5, -2.0, 9, 9], [9, 9, 9, 9], [1.0, 0.25, 3.0, 9], [9, 9, 9, 9]], np.float32
    )

    padded = dj.Padded(IDS, lengths=LENGTHS, weights=weights)
    acts, _ = dj.lookup(create(3, combiner=combiner), padded)

    assert_close(acts.rows, pool(combiner, rows_of(IDS), MASK, weights))


def test_weights_that_sum_to_zero_make_a_mean_of_zero():
    padded = dj.Padded(
        np.array([[1, 2]]), lengths=np.array([2]), weights=np.array([[1.5, -1.5]], np.float32)
    )

    acts, emb = dj.lookup(create(3, combiner="mean"), padded)
    emb = dj.apply_gradients(emb, acts, np.ones((1, 3), np.float32))

    assert not np.asarray(acts.rows).any()
    np.testing.assert_array_equal(dj.get(emb, "items", np.array([1, 2])).rows, rows_of([1, 2]))


def test_a_nan_weight_of_a_padded_place_is_never_read():
    weights = np.where(MASK, 1.0, np.nan).astype(np.float32)

    acts, _ = dj.lookup(
        create(3, combiner="mean"), dj.Padded(IDS, lengths=LENGTHS, weights=weights)
    )

    assert_close(acts.rows, pool("mean", rows_of(IDS), MASK))


def test_without_combiner_padded_places_are_zero_and_take_no_gradient():
    emb = create(3, optimizer=dj.optimizers.sgd(1.0))

    acts, emb = dj.lookup(emb, dj.Padded(IDS, mask=MASK))
    emb = dj.apply_gradients(emb, acts, np.ones((4, 4, 3), np.float32))

    assert_close(acts.rows, rows_of(IDS) * MASK[..., None])
    counts = np.array([[2], [2], [1]])
    assert_close(dj.get(emb, "items", np.array([1, 2, 3])).rows, rows_of([1, 2, 3]) - counts)


def test_a_padding_id_is_an_ordinary_id_elsewhere():
    ids = np.array([[5, 5], [-1, 5]])
    mask = np.array([[True, False], [True, False]])

    _, emb = dj.lookup(create(), dj.Padded(ids, mask=mask))

    assert dj.contains(emb, "items", np.array([5, -1])).all()
    assert dj.stats(emb)["items"].padded == 2


def test_find_skips_padded_places_also_with_a_missing_row():
    emb = create(3, missing_row=7.0)

    acts, emb = dj.lookup(emb, dj.Padded(IDS, lengths=LENGTHS), train=False)

    np.testing.assert_array_equal(acts.rows, np.where(MASK[..., None], np.full(3, 7.0), 0.0))
    assert dj.stats(emb)["items"].missing == 5


def test_padding_and_keys_may_be_traced():
    emb = create(3, combiner="sum")

    @jax.jit
    def step(emb, ids, lengths):
        acts, emb = dj.lookup(emb, dj.Padded(ids, lengths=lengths))
        return acts.rows, emb

    rows, emb = step(emb, keys(IDS), jnp.asarray(LENGTHS))

    assert_close(rows, pool("sum", rows_of(IDS), MASK))


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("lengths", [[9, 4, 5, 2**30], [-1, -5, 0, -(2**31)]])
def test_lengths_beyond_the_ids_are_refused_or_cut(lengths, jit):
    lengths = np.array(lengths, np.int32)
    emb = create(3, combiner="sum")
    lookup = jax.jit(dj.lookup) if jit else dj.lookup

    try:
        with dj.errors.typed():
            acts, emb = jax.block_until_ready(lookup(emb, dj.Padded(IDS, lengths=lengths)))
            dj.stats(emb)  # a GPU tells later
    except dj.errors.InputError:
        assert dj.stats(emb)["items"].rows == 0
        return

    inside = np.arange(4)[None, :] < lengths[:, None]
    assert_close(acts.rows, pool("sum", rows_of(IDS), inside))
    assert dj.stats(emb)["items"].ids == inside.sum()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.uint64])
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_lengths_of_any_integer_type_mean_the_same(jit, dtype):
    ids = np.arange(600).reshape(3, 200)  # 200 is more than int8 can hold
    lookup = jax.jit(dj.lookup) if jit else dj.lookup

    _, emb = lookup(create(), dj.Padded(ids, lengths=np.array([2, 0, 100], dtype)))

    stats = dj.stats(emb)["items"]
    assert (stats.ids, stats.padded) == (102, 498)


@pytest.mark.parametrize(
    "options",
    [
        {"lengths": LENGTHS, "mask": MASK},
        {"lengths": LENGTHS[:3]},
        {"lengths": LENGTHS.astype(np.float32)},
        {"mask": MASK[:, :3]},
        {"mask": MASK, "weights": np.ones((4, 3), np.float32)},
        {"mask": MASK, "weights": np.ones((4,), np.float32)},
        {"mask": MASK.astype(np.float32)},
    ],
    ids=["both", "lengths shape", "float", "mask shape", "weights shape", "rank", "mask dtype"],
)
def test_padding_that_does_not_fit_is_refused(options):
    with pytest.raises(dj.errors.InputError):
        dj.lookup(create(3, combiner="sum"), dj.Padded(IDS, **options))
