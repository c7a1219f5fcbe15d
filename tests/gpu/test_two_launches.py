"""Absent keys become rows in one cooperative launch, or in two where a device has none."""

import numpy as np
import pytest

import dynemb_jax as dj
from tests.twin import Twin, create


@pytest.fixture
def two_launches():
    """Takes cooperative launches away for one test."""
    native = pytest.importorskip("dynemb_jax._native_cuda")
    native.allow_cooperative_launch(allowed=False)
    yield native
    native.allow_cooperative_launch(allowed=True)


def insert(seed):
    """New keys, each of them several times, beside known ones, through two doublings."""
    rng = np.random.default_rng(seed)
    emb = create(6, initializer=dj.initializers.normal())
    for step in range(4):
        ids = rng.integers(0, 3000 * (step + 1), 5000)
        _, emb = dj.lookup(emb, ids)
    return emb


def test_both_ways_make_the_same_table(two_launches):
    emb = insert(0)
    stats, held = dj.stats(emb)["items"], dj.get(emb, "items", np.arange(12_000))
    two_launches.allow_cooperative_launch(allowed=True)

    other = insert(0)

    assert dj.stats(other)["items"] == stats
    again = dj.get(other, "items", np.arange(12_000))
    np.testing.assert_array_equal(held.found, again.found)
    np.testing.assert_array_equal(held.rows, again.rows)


@pytest.mark.usefixtures("two_launches")
def test_training_takes_two_launches():
    twin = Twin(optimizer="adagrad")
    rng = np.random.default_rng(1)

    for step in range(5):
        twin.train(rng.integers(0, 200 * (step + 1), 300), seed=step)

    twin.check()
