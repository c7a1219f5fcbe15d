"""Assigning rows: inserts or overwrites, with the state that belongs to them."""

import numpy as np
import pytest

import dynemb_jax as dj
from tests.plugins import ALL_OPTIMIZERS
from tests.twin import Twin, create, random_grads


def test_assign_then_find_gives_the_assigned_rows():
    twin = Twin()

    twin.assign([1, -1, 2**40], random_grads((3, 4)))

    twin.find([2**40, 1, -1, 5])
    twin.check()


def test_the_last_of_several_duplicates_wins():
    twin = Twin()
    rows = random_grads((4, 4))

    twin.emb = dj.assign(twin.emb, "items", np.array([1, 2, 1, 1]), rows)

    got = dj.get(twin.emb, "items", np.array([1, 2])).rows
    np.testing.assert_array_equal(got, rows[[3, 1]])


@pytest.mark.parametrize("optimizer", ALL_OPTIMIZERS)
def test_rows_assigned_without_state_get_the_initial_state(optimizer):
    twin = Twin(optimizer=optimizer)
    twin.train([1, 2])

    twin.assign([2, 3], np.ones((2, 4), np.float32))

    twin.check([1, 2, 3])


@pytest.mark.parametrize("optimizer", ALL_OPTIMIZERS)
def test_state_that_was_read_can_be_assigned(optimizer):
    source, target = Twin(optimizer=optimizer), Twin(optimizer=optimizer, seed=1)
    source.train([1, 2, 3])
    got = dj.get(source.emb, "items", np.array([1, 2, 3]))

    target.assign([1, 2, 3], got.rows, got.state)
    for twin in (source, target):
        acts = twin.lookup([3, 1])
        twin.update(acts, [3, 1], random_grads((2, 4), 9), step=1)

    target.check()
    a, b = (dj.get(t.emb, "items", np.array([1, 2, 3])).rows for t in (source, target))
    np.testing.assert_array_equal(a, b)


def test_keys_of_any_rank_take_rows_of_that_rank():
    emb = create(2)
    ids, rows = np.array([[1, 2], [3, 4]]), random_grads((2, 2, 2))

    emb = dj.assign(emb, "items", ids, rows)

    np.testing.assert_array_equal(dj.get(emb, "items", ids).rows, rows)


def test_no_keys_may_be_assigned():
    twin = Twin()

    twin.assign([], np.zeros((0, 4), np.float32))

    twin.check([1])


def test_activations_taken_before_an_assign_update_the_assigned_row():
    twin = Twin(optimizer="sgd")
    acts = twin.lookup([1, 2])

    twin.assign([1], np.full((1, 4), 5, np.float32))
    twin.update(acts, [1, 2], np.ones((2, 4), np.float32))

    twin.check()


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        (np.zeros((2, 3), np.float32), None),
        (np.zeros((1, 4), np.float32), None),
        (np.zeros((2, 4), np.float32), {"mu": np.zeros((2, 4), np.float32)}),
        (np.zeros((2, 4), np.float32), {}),
        (np.zeros((2, 4), np.float32), {"accumulator": np.zeros((2, 3), np.float32)}),
    ],
    ids=["dim", "count", "other state", "no state names", "state shape"],
)
def test_rows_or_state_that_do_not_fit_are_refused_and_change_nothing(rows, state):
    twin = Twin()
    twin.train([1])

    with pytest.raises(dj.errors.InputError):
        dj.assign(twin.emb, "items", np.array([1, 2]), rows, state)

    twin.check([1, 2])
    twin.train([1])
