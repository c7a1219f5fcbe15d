"""New keys of bounded tables: by all blocks together, or by one alone; batches of any size."""

import numpy as np
import pytest

import dynemb_jax as dj
from tests.bounded import POLICIES, BoundedTwin, bounded, paths
from tests.twin import keys


@pytest.fixture
def native():
    """The native module; cooperative launches are allowed again after the test."""
    module = pytest.importorskip("dynemb_jax._native_cuda")
    yield module
    module.allow_cooperative_launch(allowed=True)


def run(policy):
    """Batches with new keys beyond the bound, copies of them, and known ones."""
    rng = np.random.default_rng(0)
    emb = bounded(policy, 2000, record=1 << 20, outstanding=1)
    for _ in range(8):
        ids = rng.zipf(1.05, 4000) % 20_000
        scores = rng.integers(0, 9, 4000) if policy == "custom" else None
        _, emb = dj.lookup(emb, ids, scores=scores)
    drained, stats = dj.drain_evicted(emb, "items"), dj.stats(emb)["items"]
    got = dj.get(emb, "items", np.arange(20_000))
    return stats, drained, got


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "timestamp"])
def test_both_ways_make_the_same_table(native, policy):
    native.allow_cooperative_launch(allowed=False)
    stats, drained, got = run(policy)
    native.allow_cooperative_launch(allowed=True)

    other_stats, other_drained, other = run(policy)

    assert stats == other_stats
    assert stats.evicted > 4000
    np.testing.assert_array_equal(drained.keys, other_drained.keys)
    np.testing.assert_array_equal(drained.scores, other_drained.scores)
    np.testing.assert_array_equal(got.found, other.found)
    np.testing.assert_array_equal(got.rows, other.rows)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_one_block_follows_the_oracle(native, policy, together):
    native.allow_cooperative_launch(allowed=together)
    twin = BoundedTwin(policy, 40)
    rng = np.random.default_rng(1)
    one_bucket = [k for k, (home,) in enumerate(paths(range(6000), 4, 1)) if home == 0]

    for turn in range(6):
        pool = one_bucket if turn % 2 else range(6000)
        twin.train(rng.choice(pool, 64))

    twin.check(one_bucket)


@pytest.mark.parametrize("size", [1, 31, 33, 1000, 70_001])
def test_batches_of_any_size_fit_as_many_as_there_are_rows(size):
    emb = bounded("lru", 500, outstanding=1)
    ids = np.arange(size)

    acts, emb = dj.lookup(emb, keys(ids))

    stats = dj.stats(emb)["items"]
    assert stats.rows == stats.inserted == min(size, 500)
    assert stats.refused["pinned"] == size - stats.inserted
    found = dj.contains(emb, "items", ids)
    assert found.sum() == stats.rows
    np.testing.assert_array_equal(np.any(np.asarray(acts.rows) != 0, axis=1), found)


def test_a_million_new_keys_into_a_full_table_are_counted_to_the_last():
    emb = bounded("lru", 100_000, dim=2, outstanding=1)
    for turn in range(6):
        _, emb = dj.lookup(emb, keys(np.arange(1 << 20) + (turn << 20)))

    stats = dj.stats(emb)["items"]
    assert stats.rows == 100_000
    assert stats.ids == stats.hits + stats.inserted + sum(stats.refused.values())
    assert stats.inserted - stats.evicted == 100_000
    assert dj.contains(emb, "items", np.arange(6 << 20)).sum() == 100_000
