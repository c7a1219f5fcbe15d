"""Choosing among two buckets costs little against the exact policy, which sorts all keys."""

import numpy as np
import pytest

import dynemb_jax as dj
from tests.bounded import bounded
from tests.oracle.policies import EXACT

CAPACITY, UNIVERSE, BATCH, TURNS = 4096, 60_000, 1024, 160


def zipf(rng, drift):
    """Batches of zipf 1.05 over the universe; the popular keys move on by `drift` a batch."""
    weights = 1.0 / np.arange(1, UNIVERSE + 1) ** 1.05
    edges = np.cumsum(weights / weights.sum())
    for turn in range(TURNS):
        ranks = np.searchsorted(edges, rng.random(BATCH))
        yield np.minimum(ranks, UNIVERSE - 1) + drift * turn


@pytest.mark.parametrize("drift", [0, 20], ids=["still", "drifting"])
@pytest.mark.parametrize("policy", EXACT)
def test_hits_are_within_two_points_of_the_exact_policy(policy, drift, capsys):
    emb = bounded(policy, CAPACITY, 1, outstanding=1)
    exact = EXACT[policy](CAPACITY)
    for ids in zipf(np.random.default_rng(0), drift):
        _, emb = dj.lookup(emb, ids.astype(np.int32))
        for key in ids.tolist():
            exact.see(key)

    stats = dj.stats(emb)["items"]
    ours, best = 100 * stats.hits / stats.ids, 100 * exact.hits / stats.ids

    with capsys.disabled():
        print(f"\n{policy}, drift {drift}: {ours:.2f} % hits, the exact policy {best:.2f} %")
    assert stats.evicted > CAPACITY
    assert ours > best - 2


@pytest.mark.parametrize(("offered", "lost"), [(0.75, 0.003), (0.90, 0.56), (1.0, 3.5)])
def test_keys_that_fit_are_kept(offered, lost, capsys):
    rng = np.random.default_rng(1)
    keys = rng.permutation(2**31 - 1 - np.arange(int(offered * 50_000))).astype(np.int32)
    emb = bounded("lru", 50_000, 1, outstanding=1)

    for batch in np.array_split(keys, 25):
        _, emb = dj.lookup(emb, batch)

    kept = dj.contains(emb, "items", keys).mean()
    with capsys.disabled():
        print(f"\n{offered:.2f} of the capacity offered: {100 * (1 - kept):.4f} % lost")
    assert 100 * (1 - kept) <= lost
    assert dj.stats(emb)["items"].evicted == 0
