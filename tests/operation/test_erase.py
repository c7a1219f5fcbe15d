"""Erasing: row and state are forgotten together, neighbours stay."""

import numpy as np
import pytest

import dynemb_jax as dj
from tests.plugins import ALL_OPTIMIZERS
from tests.twin import SAME_LOW_HALF, SPECIAL_KEYS, Twin, random_grads


@pytest.mark.parametrize("optimizer", ALL_OPTIMIZERS)
def test_erase_then_lookup_gives_a_fresh_row_and_fresh_state(optimizer):
    twin = Twin(optimizer=optimizer)
    twin.train([1, 2, 3])

    twin.erase([2])
    twin.check([1, 2, 3])
    twin.lookup([2])

    twin.check()


def test_a_freed_place_shows_nothing_of_its_former_row():
    twin = Twin(optimizer="adam_row")
    twin.train(range(20))

    twin.erase(range(20))
    twin.lookup(range(100, 120))

    twin.check()
    twin.check(range(20))


def test_missing_keys_are_ignored():
    twin = Twin()
    twin.train([1])

    twin.erase([5, 6, 5])

    twin.check([1, 5, 6])


def test_duplicates_erase_once():
    twin = Twin()
    twin.train([1, 2])

    twin.erase([1, 1, 1])

    twin.check([1, 2])


def test_erasing_one_key_leaves_those_that_share_its_low_half():
    twin = Twin()
    twin.train(SAME_LOW_HALF)

    for key in SAME_LOW_HALF[::2]:
        twin.erase([key])
        twin.check(SAME_LOW_HALF)


def test_special_keys_can_be_erased_and_come_back():
    twin = Twin()
    twin.train([*SPECIAL_KEYS, *range(100, 1100)])

    twin.erase(SPECIAL_KEYS)
    twin.check([*SPECIAL_KEYS, *range(100, 1100)])
    twin.train(SPECIAL_KEYS)

    twin.check()


def test_rows_come_and_go_without_the_table_growing():
    twin = Twin(dim=1, initial_rows=64)
    capacity = dj.stats(twin.emb)["items"].capacity

    for round_ in range(20):
        twin.train(range(round_ * 32, round_ * 32 + 32))
        twin.erase(range(round_ * 32, round_ * 32 + 32))

    stats = dj.stats(twin.emb)["items"]
    assert (stats.rows, stats.capacity, stats.erased) == (0, capacity, 640)


def test_erase_frees_its_rows_for_new_ones():
    twin = Twin(initial_rows=64)
    row_bytes = dj.stats(twin.emb)["items"].row_bytes
    twin.train(range(40))

    twin.erase(range(0, 40, 2))
    twin.train(range(1000, 1020))

    twin.check()
    assert dj.stats(twin.emb)["items"].row_bytes == row_bytes


def test_activations_taken_before_an_erase_are_stale_after_it():
    twin = Twin()
    acts = twin.lookup([1, 2])
    twin.erase([1])

    with pytest.raises(dj.errors.StaleStateError):
        dj.apply_gradients(twin.emb, acts, random_grads((2, 4)))

    twin.check([1, 2])
    twin.train([1, 2])
    twin.check()


def test_no_keys_may_be_erased():
    twin = Twin()
    twin.train([1])

    twin.emb = dj.erase(twin.emb, "items", np.zeros(0, np.int64))

    twin.check([1])
