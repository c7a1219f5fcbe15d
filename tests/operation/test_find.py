"""Looking up without training: finds, and changes nothing."""

import numpy as np
import pytest

import dynemb_jax as dj
from tests.oracle import row_init
from tests.twin import Twin, assert_close, create, keys, token_of


def test_find_gives_the_stored_rows():
    twin = Twin()
    twin.train([1, 2, -1])

    twin.find([[2, -1], [1, 1]])

    twin.check()


@pytest.mark.parametrize("missing_row", [0.0, 2.5])
def test_a_missing_key_gives_the_constant_missing_row(missing_row):
    acts, _ = dj.lookup(create(3, missing_row=missing_row), np.array([7, 8]), train=False)

    np.testing.assert_array_equal(acts.rows, np.full((2, 3), missing_row))


def test_a_missing_key_gives_its_first_row_on_request():
    emb = create(5, missing_row="initializer", seed=4)
    ids = keys([7, -1])

    acts, _ = dj.lookup(emb, ids, train=False)

    np.testing.assert_array_equal(acts.rows, row_init.Uniform()(4, "items", [7, -1], 5))
    assert not dj.contains(emb, "items", ids).any()


def test_find_inserts_nothing_and_keeps_the_state_current():
    twin = Twin()
    twin.train([1, 2])
    token = np.asarray(token_of(twin.emb))

    _, after = dj.lookup(twin.emb, np.array([1, 5]), train=False)
    twin.oracle.find([1, 5])

    np.testing.assert_array_equal(token_of(after), token)
    twin.check()
    twin.train([5])


def test_find_through_old_state_sees_the_present_rows():
    old = create(2)
    dj.assign(old, "items", np.array([3]), np.full((1, 2), 9, np.float32))

    acts, _ = dj.lookup(old, np.array([3]), train=False)

    np.testing.assert_array_equal(acts.rows, [[9, 9]])


def test_find_counts_found_and_missing_ids_with_their_duplicates():
    twin = Twin()
    twin.lookup([1, 2])

    twin.find([1, 1, 3, 3, 3])

    stats = dj.stats(twin.emb)["items"]
    assert (stats.found, stats.missing, stats.hits, stats.inserted) == (2, 3, 0, 2)


def test_missing_ids_count_in_the_mean():
    emb = create(2, combiner="mean", missing_row=1.0)
    emb = dj.assign(emb, "items", np.array([1]), np.full((1, 2), 4, np.float32))

    acts, _ = dj.lookup(emb, np.array([[1, 50, 51]]), train=False)

    assert_close(acts.rows, [[2, 2]])


def test_find_of_no_ids_is_empty():
    acts, _ = dj.lookup(create(3), np.zeros((0,), np.int32), train=False)

    assert (acts.rows.shape, acts.rows.dtype) == ((0, 3), np.float32)


def test_contains_and_get_agree_with_find_on_what_is_there():
    twin = Twin(missing_row=0.5)
    twin.train([1, 2])
    ids = np.array([[1, 3], [4, 2]])

    got = dj.get(twin.emb, "items", ids)
    acts, _ = dj.lookup(twin.emb, ids, train=False)

    np.testing.assert_array_equal(got.found, [[True, False], [False, True]])
    np.testing.assert_array_equal(dj.contains(twin.emb, "items", ids), got.found)
    np.testing.assert_array_equal(got.rows, acts.rows)
    assert got.state["accumulator"].shape == (2, 2, 4)
    assert not got.state["accumulator"][~got.found].any()


def test_get_shows_the_missing_row_as_find_does():
    emb = create(3, missing_row="initializer")

    acts, _ = dj.lookup(emb, np.array([4, 5]), train=False)

    np.testing.assert_array_equal(dj.get(emb, "items", np.array([4, 5])).rows, acts.rows)


def test_get_gives_numpy_arrays():
    got = dj.get(Twin(optimizer="adam_row").emb, "items", np.array([1]))

    assert all(isinstance(a, np.ndarray) for a in (got.found, got.rows, *got.state.values()))
    assert (got.found.dtype, got.rows.dtype) == (np.bool_, np.float32)
    assert got.state["count"].dtype == np.int32
    assert {n: s.shape for n, s in got.state.items()} == {"mu": (1, 4), "nu": (1, 4), "count": (1,)}
