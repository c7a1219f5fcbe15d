"""Keys that nobody touches for longer than they may live are forgotten, full table or not."""

import jax
import numpy as np
import pytest

import dynemb_jax as dj
from tests.bounded import POLICIES, BoundedTwin, bounded
from tests.oracle.bounded_table import split_mix
from tests.twin import keys

ONES = np.ones((1, 4), np.float32)


def ages(policy, ttl, turns=40):
    """Lookups since its touch after which key 0 is gone, while others keep the table busy."""
    twin = BoundedTwin(policy, 1000, ttl=ttl)
    twin.train([0])
    for age in range(1, turns):
        twin.train([age])
        if not dj.contains(twin.emb, "items", [0])[0]:
            twin.check(range(turns))
            return age
    return None


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("ttl", [1, 3, 7, 16, 24])
def test_a_key_lives_its_time_and_at_most_an_eighth_longer(policy, ttl):
    age = ages(policy, ttl)

    assert ttl < age <= ttl + max(1, ttl // 8)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_touch_is_a_new_life(policy):
    twin = BoundedTwin(policy, 100, ttl=3)
    twin.train([1, 2])
    for turn in range(10):
        twin.train([1, 100 + turn])

    twin.check([1, 2])
    np.testing.assert_array_equal(dj.contains(twin.emb, "items", [1, 2]), [1, 0])


def test_assigning_touches_and_evaluation_does_not():
    twin = BoundedTwin("lfu", 100, ttl=4)
    twin.train([1, 2])
    for turn in range(3):
        twin.train([100 + turn])
    twin.assign([1])
    dj.lookup(twin.emb, keys([2]), train=False)
    twin.oracle.counters["found"] += 1

    for turn in range(3):
        twin.train([200 + turn])

    twin.check([1, 2])
    np.testing.assert_array_equal(dj.contains(twin.emb, "items", [1, 2]), [1, 0])


def test_a_key_that_comes_back_starts_afresh():
    twin = BoundedTwin("lru", 100, ttl=1, optimizer="adam_row")
    for _ in range(3):
        twin.train([1])
    for turn in range(3):
        twin.train([100 + turn])

    twin.train([1])

    twin.check([1])
    assert twin.stats.expired > 0


def test_rows_of_expired_keys_are_used_again():
    emb = bounded("lru", None, ttl=2)

    for turn in range(200):
        acts, emb = dj.lookup(emb, np.arange(16) + 16 * turn)
        emb = dj.apply_gradients(emb, acts, np.ones((16, 4), np.float32))

    stats = dj.stats(emb)["items"]
    assert (stats.rows, stats.expired, stats.evicted) == (48, 16 * 197, 0)
    # And the table has not grown on, but for the head-room that a GPU keeps for four batches.
    on_cpu = jax.config.jax_default_device.platform == "cpu"
    assert stats.capacity <= (4 if on_cpu else 8) * 31


def test_rows_that_wait_for_their_update_do_not_expire():
    twin = BoundedTwin("lru", 100, ttl=1, outstanding=3)
    first = twin.lookup([1, 2])
    pending = [twin.lookup([10 + turn]) for turn in range(2)]

    assert dj.contains(twin.emb, "items", [1, 2]).all()
    for looked in [first, *pending]:
        assert twin.update([looked]) is None
    twin.train([20])

    twin.check(range(30))
    assert not dj.contains(twin.emb, "items", [1, 2]).any()


def test_an_update_that_comes_after_its_rows_expired_is_refused():
    emb = bounded("lru", 100, ttl=1, outstanding=1)
    acts, emb = dj.lookup(emb, keys([1]))
    for key in (2, 3, 4):
        _, emb = dj.lookup(emb, keys([key]))

    with pytest.raises(dj.errors.TooManyOutstandingError):
        dj.apply_gradients(emb, acts, ONES)


def test_expired_keys_are_drained_with_their_scores_and_the_rest_is_counted():
    emb = bounded("lfu", 100, ttl=1, record=2, outstanding=1)
    _, emb = dj.lookup(emb, keys([5, 3, 3, 4]))
    for key in (10, 11):
        _, emb = dj.lookup(emb, keys([key]))

    drained = dj.drain_evicted(emb, "items")

    first = sorted([5, 3, 4], key=split_mix)[:2]
    assert drained.keys.tolist() == first
    assert drained.scores.tolist() == [2 if key == 3 else 1 for key in first]
    assert drained.lost == 1
    assert dj.stats(emb)["items"].expired == 3


@pytest.mark.parametrize("policy", POLICIES)
def test_seconds_are_those_of_the_clock(policy):
    def fed(seconds):
        made = dj.eviction.lfu(decay=5) if policy == "decayed" else getattr(dj.eviction, policy)()
        table = dj.TableConfig("items", 4, eviction=dj.eviction.ttl(made, seconds=seconds))
        emb = dj.create(dj.FeatureConfig(table), max_outstanding=1)
        scores = np.zeros(1, np.uint32) if policy == "custom" else None
        for key in range(5):
            _, emb = dj.lookup(emb, keys([key]), scores=scores)
        return dj.stats(emb)["items"].rows

    assert fed(1e-9) <= 2  # of the last lookup, whose row is pinned, and the one before
    assert fed(1e9) == 5


@pytest.mark.parametrize(
    ("policy", "more"), [("lru", 0), ("timestamp", 1), ("lfu", 1), ("custom", 1), ("decayed", 1)]
)
def test_a_slot_has_a_word_more_unless_its_score_tells_its_age(policy, more):
    plain, mortal = (
        dj.stats(bounded(policy, 10, ttl=ttl, initial_rows=10))["items"].row_bytes
        for ttl in (None, 5)
    )

    assert mortal - plain == more * 256  # of one bucket


def test_seconds_cost_timestamp_nothing_and_lru_a_word():
    def row_bytes(policy):
        table = dj.TableConfig("items", 4, eviction=policy, initial_rows=10)
        return dj.stats(dj.create(dj.FeatureConfig(table)))["items"].row_bytes

    lru, timestamp = dj.eviction.lru(max_rows=10), dj.eviction.timestamp(max_rows=10)

    assert row_bytes(dj.eviction.ttl(timestamp, seconds=5)) == row_bytes(timestamp)
    assert row_bytes(dj.eviction.ttl(lru, seconds=5)) == row_bytes(lru) + 256


def test_a_budget_in_bytes_holds_with_a_time_to_live():
    emb = bounded("lfu", None, max_bytes=20_000, ttl=5)

    for turn in range(40):
        acts, emb = dj.lookup(emb, np.arange(64) + 64 * turn)
        emb = dj.apply_gradients(emb, acts, np.ones((64, 4), np.float32))
        assert dj.stats(emb)["items"].bytes <= 20_000

    stats = dj.stats(emb)["items"]
    assert (stats.row_bytes - stats.capacity // 31 * (260 + 256)) % (2 * 16 + 8) == 0
