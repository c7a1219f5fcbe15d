"""Thousands of steps within one budget: memory stays, counters add up, no row goes wrong."""

import jax
import numpy as np
import pytest

import dynemb_jax as dj
from tests.bounded import resident_bytes
from tests.oracle.admission import Sketched
from tests.oracle.dict_table import DictTable
from tests.plugins import INITIALIZERS, OPTIMIZERS
from tests.twin import assert_close

BUDGET, DIM, BATCH, COUNTERS = 160_000, 8, 48, 1 << 16


class Follower:
    """Dictionary rows of a bounded table that is told who went, and predicts all else."""

    def __init__(self):
        _, reference = OPTIMIZERS["adam"]
        _, first_rows = INITIALIZERS["uniform"]
        self.table = DictTable("items", DIM, optimizer=reference, first_rows=first_rows)
        self.admission = Sketched(2, COUNTERS)

    def lookup(self, ids, gone, lookup):
        """Rows, and which ids have one."""
        for key in gone:
            del self.table.rows[key]
        absent = [key for key in ids if key not in self.table.rows]
        judged = iter(self.admission.judge(absent, lookup))
        missing = set(absent)
        served = []
        for key in ids:
            served.append(key not in missing or next(judged))
            if served[-1] and key not in self.table.rows:
                self.table._insert(key)
        self.admission.remember(absent)
        return np.where(np.array(served)[:, None], self.table.values(ids), 0.0), served


def drifting(rng, step):
    """Zipf ids whose popular ones move on, and some that come once."""
    popular = np.minimum(rng.zipf(1.2, BATCH - 4), 4000) + step // 4
    return np.concatenate([popular, rng.integers(10**6, 2**40, 4)]).astype(np.int64)


def soak(steps):
    """Runs the steps; returns resident bytes now and then."""
    rule, _ = OPTIMIZERS["adam"]
    policy = dj.eviction.ttl(dj.eviction.lfu(record=4096, decay=300), steps=800)
    config = dj.TableConfig(
        "items",
        DIM,
        optimizer=rule,
        eviction=policy,
        admission=dj.admission.frequency(2, counters=COUNTERS),
        max_bytes=BUDGET,
    )
    emb = dj.create(dj.FeatureConfig(config), deterministic=True)
    follower, rng, resident = Follower(), np.random.default_rng(0), []
    look = jax.jit(dj.lookup, donate_argnums=0)
    update = jax.jit(dj.apply_gradients, donate_argnums=0)

    for step in range(steps):
        ids = drifting(rng, step)
        grads = rng.normal(size=(BATCH, DIM)).astype(np.float32)
        acts, emb = look(emb, dj.keys(ids))
        drained = dj.drain_evicted(emb, "items")
        assert drained.lost == 0
        expected, served = follower.lookup(ids.tolist(), drained.keys.tolist(), step + 1)
        assert_close(acts.rows, expected, rtol=1e-3, atol=1e-4)
        emb = update(emb, acts, grads)
        follower.table.apply(ids, grads, served)

        if step % 500 == 499:
            stats = dj.stats(emb)["items"]
            assert stats.bytes <= BUDGET
            assert stats.admission_bytes == COUNTERS
            assert stats.refused["pinned"] == stats.refused["budget"] == 0
            assert stats.ids == BATCH * (step + 1)
            assert stats.ids == stats.hits + stats.inserted + sum(stats.refused.values())
            assert stats.rows == stats.inserted - stats.evicted - stats.expired
            assert stats.rows == len(follower.table.rows)
            resident.append(resident_bytes())

    survivors = list(follower.table.rows)
    got = dj.get(emb, "items", dj.keys(np.array(survivors, np.uint64)))
    assert got.found.all()
    assert_close(got.rows, follower.table.values(survivors), rtol=1e-3, atol=1e-4)
    for name, value in follower.table.state(survivors).items():
        assert_close(got.state[name], value, rtol=1e-3, atol=1e-4, what=name)
    stats = dj.stats(emb)["items"]
    assert stats.rows > 400
    return stats, resident


def test_a_thousand_steps_within_a_budget():
    stats, _ = soak(1000)

    assert stats.evicted > 100


@pytest.mark.long
def test_ten_thousand_steps_within_a_budget_leave_memory_flat():
    stats, resident = soak(10_000)

    assert stats.evicted > 2000
    assert stats.expired > 100
    assert max(resident[4:]) - resident[3] < 8 << 20  # bytes, from step 2,000 on
