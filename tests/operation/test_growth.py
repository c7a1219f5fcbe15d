"""Growth: it happens before it is needed, and every row is there afterwards."""

import functools

import jax
import numpy as np
import pytest

import dynemb_jax as dj
from dynemb_jax import _native
from tests.twin import Twin, create, keys, u64


def home_bucket(ids, buckets):
    out = np.empty(ids.shape, np.int64)
    _native.home_buckets(ids, buckets, out)
    return out


@functools.cache
def crowd():
    """300 keys that start probing at one bucket: the first of 4,096, or of fewer."""
    rng = np.random.default_rng(0)
    found = np.zeros(0, np.uint64)
    while len(found) < 300:
        drawn = rng.integers(0, 2**64, 1_000_000, np.uint64)
        found = np.concatenate([found, drawn[home_bucket(drawn, 4096) == 0]])
    return found[:300]


def test_copies_of_few_keys_do_not_grow_a_small_table():
    twin = Twin(initial_rows=64)
    before = dj.stats(twin.emb)["items"]

    twin.emb = dj.lookup(twin.emb, np.arange(100_000) % 10)[1]

    after = dj.stats(twin.emb)["items"]
    assert (after.rows, after.growths, after.capacity) == (10, 0, before.capacity)


def test_the_batch_that_crosses_the_limit_keeps_every_row():
    twin = Twin(initial_rows=64, optimizer="adam_row")
    capacity = dj.stats(twin.emb)["items"].capacity
    few = range(int(capacity * 0.8))

    twin.train(few)
    assert dj.stats(twin.emb)["items"].growths == 0
    twin.train(range(capacity // 2, 3 * capacity))

    assert dj.stats(twin.emb)["items"].growths >= 1
    twin.check(range(3 * capacity + 10))


def test_a_table_grows_many_times_and_loses_nothing():
    twin = Twin(dim=2, optimizer="adagrad")

    for step in range(12):
        twin.train(range(step * 500, step * 500 + 512))

    assert dj.stats(twin.emb)["items"].growths >= 2
    twin.check()


def test_activations_from_before_a_growth_can_be_applied_after_it():
    twin = Twin(optimizer="adam")
    acts = twin.lookup([1, 2, 3])
    grads = np.ones((3, 4), np.float32)

    twin.lookup(range(5000))
    twin.update(acts, [1, 2, 3], grads)

    assert dj.stats(twin.emb)["items"].growths >= 1
    twin.check()


def test_growth_compiles_nothing_again():
    twin = Twin(dim=2)
    step = jax.jit(lambda emb, ids: dj.lookup(emb, ids)[1])

    for i in range(10):
        twin.emb = step(twin.emb, np.arange(i * 1000, i * 1000 + 1000, dtype=np.int32))

    stats = dj.stats(twin.emb)["items"]
    assert (stats.rows, stats.growths > 0) == (10_000, True)
    assert step._cache_size() == 1


def test_erased_places_are_used_again_across_growth():
    twin = Twin(dim=2)

    for step in range(6):
        twin.train(range(step * 400, step * 400 + 400))
        twin.erase(range(step * 400, step * 400 + 400, 3))

    twin.check(range(2400))


@pytest.mark.parametrize("count", [33, 300])
def test_keys_of_one_home_bucket_are_all_found_at_low_load(count):
    emb = create(2, initial_rows=20_000)
    capacity = dj.stats(emb)["items"].capacity
    ids = dj.keys(crowd()[:count])

    acts, emb = dj.lookup(emb, ids)

    assert count <= capacity // 10
    assert dj.contains(emb, "items", ids).all()
    found, _ = dj.lookup(emb, ids, train=False)
    np.testing.assert_array_equal(found.rows, acts.rows)


def test_keys_of_one_home_bucket_live_in_a_table_that_grows_from_nothing():
    twin = Twin(dim=2)
    ids = [int(k) for k in crowd()]

    for start in range(0, 300, 60):
        twin.train(ids[start : start + 60])

    twin.check(ids)


def test_a_crowded_bucket_survives_erasing_and_coming_back():
    twin = Twin(dim=2, initial_rows=20_000)
    ids = [int(k) for k in crowd()[:100]]
    twin.train(ids)

    twin.erase(ids[:31])
    twin.check(ids)
    twin.train(ids[::-1])

    twin.check(ids)


@pytest.mark.parametrize("max_load", [0.001, 0.03, 0.5, 0.999])
def test_any_legal_load_limit_only_decides_when_to_grow(max_load):
    twin = Twin(dim=1, max_load=max_load)

    twin.train(range(100))
    twin.train(range(50, 150))

    twin.check(range(160))


def test_home_buckets_are_spread_evenly():
    drawn = np.concatenate([np.arange(64_000, dtype=np.uint64), u64(range(-1000, 0))])

    counts = np.bincount(home_bucket(drawn, 64), minlength=64)

    # Mean 1016, standard deviation 32: six of them.
    assert abs(counts - counts.mean()).max() < 6 * 32


def test_sequential_ids_with_a_stride_fill_a_table_without_waste():
    emb = create(1)

    _, emb = dj.lookup(emb, keys([i << 20 for i in range(4000)]))

    stats = dj.stats(emb)["items"]
    assert stats.rows == 4000
    assert stats.load > 0.2
