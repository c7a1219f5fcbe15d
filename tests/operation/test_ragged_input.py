"""Making a Ragged: from host data, of any integers, and what does not fit."""

import jax
import numpy as np
import pytest

import dynemb_jax as dj
from tests.operation.test_ragged import IDS, SPLITS, rows_of
from tests.oracle import ragged
from tests.twin import assert_close, contents, create


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64])
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_row_splits_of_any_integer_type_mean_the_same(jit, dtype):
    lookup = jax.jit(dj.lookup) if jit else dj.lookup

    acts, _ = lookup(create(3, combiner="sum"), dj.Ragged(IDS, SPLITS.astype(dtype)))

    assert_close(acts.rows, ragged.pool("sum", rows_of(IDS), SPLITS))


@pytest.mark.parametrize("train", [True, False], ids=["train", "find"])
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("combiner", [None, "mean"])
@pytest.mark.parametrize(
    ("splits", "says"),
    [
        ([1, 2, 5], ["start at 0", "got 1", "position 0"]),
        ([-1, 2, 5], ["start at 0", "got -1"]),
        ([0, 4, 2], ["not decrease", "got 2 behind 4", "position 2"]),
        ([0, -3, 2], ["not decrease", "got -3"]),
        ([0, 2, 9], ["within its ids", "are 8", "got 9"]),
        ([0, 2**31 - 1, 2**31 - 1], ["within its ids", "got 2147483647"]),
        ([0, -(2**31), 8], ["not decrease"]),
        (np.array([0, 2**32 + 1, 2**32 + 2]), ["within its ids"]),
        (np.array([0, -(2**32), 4]), ["not decrease"]),
        (np.array([0, 2**32 + 1, 2**32 + 2], np.uint64), ["within its ids"]),
    ],
    ids=["start", "negative", "falls", "below", "beyond", "far", "low", "wide", "deep", "uint64"],
)
def test_wrong_row_splits_are_refused_before_anything_changes(splits, says, combiner, jit, train):
    if not isinstance(splits, np.ndarray):
        splits = np.array(splits, np.int32)
    emb = create(3, combiner=combiner)
    _, emb = dj.lookup(emb, dj.Ragged(IDS, SPLITS))
    before = contents(emb)

    def lookup(emb, ids):
        return dj.lookup(emb, ids, train=train)

    lookup = jax.jit(lookup) if jit else lookup

    def look_wrongly():
        _, after = jax.block_until_ready(lookup(emb, dj.Ragged(IDS + 10, splits)))
        dj.stats(after)  # a GPU tells later

    with pytest.raises(dj.errors.InputError) as caught, dj.errors.typed():
        look_wrongly()

    assert all(part in str(caught.value) for part in ["row_splits of Ragged", *says])
    assert contents(emb) == before
    dj.lookup(emb, dj.Ragged(IDS, SPLITS))


def test_row_splits_of_acts_that_were_changed_are_refused():
    emb = create(3, combiner="sum")
    acts, emb = dj.lookup(emb, dj.Ragged(IDS, SPLITS))
    before = contents(emb)
    acts.row_splits = (np.array([0, 2, 2, 5, 2**30], np.int32),)

    with pytest.raises(dj.errors.InputError):
        dj.apply_gradients(emb, acts, acts.rows)

    assert contents(emb) == before


@pytest.mark.parametrize(
    "make",
    [
        lambda: dj.Ragged(5, [0, 1]),
        lambda: dj.Ragged(IDS, []),
        lambda: dj.Ragged(IDS, 3),
        lambda: dj.Ragged(IDS, [[0, 1]]),
        lambda: dj.Ragged(IDS, [0.0, 1.0]),
        lambda: dj.Ragged(IDS, SPLITS, np.ones(7, np.float32)),
        lambda: dj.Ragged(IDS, SPLITS, np.ones((8, 1), np.float32)),
        lambda: dj.Ragged(IDS, SPLITS, np.ones(8, bool)),
        lambda: dj.Ragged(IDS.astype(np.float32), SPLITS),
        lambda: dj.Ragged(np.zeros((2, 3), np.int32), [[0, 1]]),
        lambda: dj.Ragged.from_lists([[1, 2], [3]], capacity=2),
        lambda: dj.Ragged.from_lists([[1]], capacity=-1),
        lambda: dj.Ragged.from_lists([[1]], capacity=2.5),
        lambda: dj.Ragged.from_lists([[1.5]]),
        lambda: dj.Ragged.from_lists([["a"]]),
        lambda: dj.Ragged.from_lists([[[1]]]),
        lambda: dj.Ragged.from_lists([[2**64]]),
        lambda: dj.Ragged.from_lists([[1, 2], [3]], weights=[[1.0], [1.0, 2.0]]),
        lambda: dj.Ragged.from_lists([[1, 2]], weights=[[1.0, 1.0], []]),
        lambda: dj.Ragged.from_lists(5),
        lambda: dj.Ragged.from_lists([1, 2]),
    ],
    ids=range(21),
)
def test_what_does_not_fit_is_an_input_error_that_says_what_to_do(make):
    with pytest.raises(dj.errors.InputError, match=";"):
        make()


def test_weights_without_a_combiner_are_refused():
    with pytest.raises(dj.errors.InputError, match="no combiner"):
        dj.lookup(create(3), dj.Ragged(IDS, SPLITS, np.ones(8, np.float32)))


def test_lists_keep_their_ids_order_weights_and_all_64_bits():
    bags = [[2**40 + 7, -1], [], np.array([5], np.uint8), (2**64 - 1,)]

    made = dj.Ragged.from_lists(bags, capacity=6, weights=[[1, 2.5], [], [3], [4]])

    expected = np.array([2**40 + 7, 2**64 - 1, 5, 2**64 - 1, 0, 0], np.uint64)
    np.testing.assert_array_equal(made.ids.pairs, dj.keys(expected).pairs)
    np.testing.assert_array_equal(made.row_splits, [0, 2, 2, 3, 4])
    np.testing.assert_array_equal(made.weights, np.array([1, 2.5, 3, 4, 0, 0], np.float32))
    assert (made.row_splits.dtype, made.weights.dtype) == (np.int32, np.float32)
    assert repr(made) == "Ragged(ids(6,), row_splits(5,), weights)"


def test_arrays_of_several_integer_types_are_the_same_lists():
    arrays = [np.array([-1, 3], np.int64), np.array([], np.int32), np.array([7], np.uint64)]

    made = dj.Ragged.from_lists(arrays)

    listed = dj.Ragged.from_lists([[-1, 3], [], [7]])
    np.testing.assert_array_equal(made.ids.pairs, listed.ids.pairs)
    np.testing.assert_array_equal(made.row_splits, listed.row_splits)
    assert made.weights is None


def test_lists_of_one_capacity_share_a_program():
    traced = []

    @jax.jit
    def step(emb, ids):
        traced.append(1)
        acts, emb = dj.lookup(emb, ids)
        return dj.apply_gradients(emb, acts, acts.rows)

    emb = create(3, combiner="mean")
    for bags in ([[1], [2, 3]], [[], []], [[2**40, 1, 2, 3], [-1]]):
        emb = step(emb, dj.Ragged.from_lists(bags, capacity=6))

    assert len(traced) == 1


def test_a_feed_delivers_ragged_batches_whole():
    splits, weights = np.array([0, 2**32]), np.arange(2)
    batches = [dj.Ragged.from_lists([[2**40], [1]]), dj.Ragged(np.array([1, 2]), splits, weights)]

    first, second = dj.feed(batches)

    assert isinstance(first, dj.Ragged)
    assert isinstance(first.row_splits, jax.Array)
    np.testing.assert_array_equal(first.ids.pairs, batches[0].ids.pairs)
    assert second.row_splits[1] > 2  # cut to 32 bits it would be 0
    assert second.weights.dtype == np.float32
    assert isinstance(second.ids, dj.Keys)


def test_scores_of_padding_do_not_count():
    table = dj.TableConfig("items", 3, eviction=dj.eviction.custom(max_rows=2, record=4))
    emb = dj.create(dj.FeatureConfig(table, "sum"), max_outstanding=1)

    ids = dj.Ragged.from_lists([[1], [2]], capacity=4)
    _, emb = dj.lookup(emb, ids, scores=np.array([5, 7, 100, 100]))
    _, emb = dj.lookup(emb, dj.Ragged.from_lists([[3]], capacity=4), scores=np.full(4, 6))

    assert dj.drain_evicted(emb, "items").keys.tolist() == [1]
