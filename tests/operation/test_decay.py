"""Uses that fade: the order of keys is that of their decayed counts at any time."""

import numpy as np
import pytest

import dynemb_jax as dj
from tests.bounded import HALF_LIFE, BoundedTwin, bounded
from tests.oracle.bounded_table import decayed_score, decayed_sum, decayed_weight
from tests.twin import keys


def drained(batches, decay, max_rows=1000):
    """Keys and scores of all keys after the batches, by pushing them out."""
    policy = dj.eviction.lfu(max_rows, record=10_000, decay=decay)
    emb = dj.create(
        dj.FeatureConfig(dj.TableConfig("items", 1, eviction=policy)), max_outstanding=1
    )
    for batch in batches:
        _, emb = dj.lookup(emb, np.asarray(batch))
    ids = np.unique(np.concatenate(batches))
    pushers = np.arange(10**6, 10**6 + max_rows)
    _, emb = dj.lookup(emb, pushers)
    gone = dj.drain_evicted(emb, "items")
    found = dict(zip(gone.keys.tolist(), gone.scores.tolist(), strict=True))
    return {int(k): found[int(k)] for k in ids if int(k) in found}


@pytest.mark.parametrize("decay", [1, 2, 7, 1000])
def test_scores_are_the_sums_of_the_formula(decay):
    rng = np.random.default_rng(decay)
    batches = [rng.zipf(1.5, 30) % 20 for _ in range(50)]

    scores = drained(batches, decay, max_rows=20)

    totals = {}
    for lookup, batch in enumerate(batches, start=1):
        for key in batch.tolist():
            weight = decayed_weight(lookup, decay)
            totals[key] = decayed_sum(totals.get(key, 0), weight)
    assert len(scores) > 5
    assert scores == {key: decayed_score(totals[key]) for key in scores}


@pytest.mark.parametrize("decay", [3, 50])
def test_scores_over_the_weight_of_now_are_uses_that_halve(decay):
    rng = np.random.default_rng(0)
    batches = [rng.zipf(1.5, 30) % 20 for _ in range(60)]

    scores = drained(batches, decay, max_rows=20)

    def number(score):
        return 2.0 ** ((score >> 32) - 1) * (1 + score % 2**32 / 2**32)

    for key, score in scores.items():
        uses = [i for i, batch in enumerate(batches, start=1) for k in batch if k == key]
        exact = sum(2.0 ** (use / decay) for use in uses)
        assert 1 - 1e-6 <= number(score) / exact <= 1.0615


@pytest.mark.parametrize("gap", [1, 31, 32, 33, 34, 70])
def test_uses_that_are_far_apart_add_up_to_the_last_place(gap):
    far = [[7]] + [[1, 2]] * (gap - 1) + [[7, 7]]

    scores = drained(far, 1, max_rows=3)

    total = decayed_sum(decayed_weight(1, 1), decayed_weight(1 + gap, 1))
    assert scores[7] == decayed_score(decayed_sum(total, decayed_weight(1 + gap, 1)))


def test_the_order_of_ids_within_a_batch_does_not_matter():
    rng = np.random.default_rng(0)
    batches = [rng.zipf(1.3, 64) % 30 for _ in range(20)]
    sorted_batches = [np.sort(batch) for batch in batches]

    assert drained(batches, 4, 31) == drained(sorted_batches, 4, 31)


def test_what_was_used_often_long_ago_makes_way_for_what_is_used_now():
    forgetful, stubborn = BoundedTwin("decayed", 4), BoundedTwin("lfu", 4)
    for twin in (forgetful, stubborn):
        twin.train([1] * 20 + [2, 3, 4])
        for _ in range(10 * HALF_LIFE):
            twin.train([2, 3, 4])
        for _ in range(2):
            twin.train([5])

    np.testing.assert_array_equal(dj.contains(forgetful.emb, "items", [1, 5]), [0, 1])
    for twin in (forgetful, stubborn):
        twin.check(range(6))


def test_a_count_of_one_now_is_about_the_documented_score():
    emb = bounded("decayed", 50)
    for turn in range(20):
        _, emb = dj.lookup(emb, keys([turn]))
    lookups = dj.stats(emb)["items"].lookups

    emb = dj.erase_if(emb, "items", score_below=(lookups // HALF_LIFE + 1) << 32)

    kept = [key for key in range(20) if dj.contains(emb, "items", [key])[0]]
    assert kept == [key for key in range(20) if (key + 1) // HALF_LIFE >= lookups // HALF_LIFE]


def test_many_copies_of_a_key_are_counted_alike_at_once_and_in_turn():
    once = drained([np.zeros(1 << 16, np.int64)] * 4, 5, 1)

    total = 0
    for lookup in range(1, 5):
        for _ in range(1 << 16):
            total = decayed_sum(total, decayed_weight(lookup, 5))

    assert once == {0: decayed_score(total)}
