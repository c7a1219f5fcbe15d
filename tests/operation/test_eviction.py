"""A full table forgets what its policy says, and says what it did."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.bounded import ON_FULL, POLICIES, RECORD, BoundedTwin, bounded, eviction_of, paths
from tests.oracle.bounded_table import split_mix
from tests.twin import SAME_LOW_HALF, SPECIAL_KEYS, assert_close, keys, random_grads

LARGEST = 2**64 - 1


@pytest.mark.parametrize("on_full", ON_FULL)
@pytest.mark.parametrize("policy", POLICIES)
def test_one_key_more_than_fits_does_what_on_full_says(policy, on_full):
    twin = BoundedTwin(policy, 8, on_full=on_full)
    twin.train(range(8))  # all scores are equal

    twin.train([8])

    twin.check(range(9))
    assert twin.stats.rows == 8
    assert twin.stats.evicted == (on_full == "evict")
    assert dj.contains(twin.emb, "items", [8]) == (on_full == "evict")


@pytest.mark.parametrize("order", [1, -1])
def test_of_equal_scores_the_smallest_hash_goes(order):
    twin = BoundedTwin("lru", 8)
    twin.train(range(8)[::order])

    twin.train([8, 9])

    expected = sorted(range(8), key=split_mix)[:2]
    assert dj.drain_evicted(twin.emb, "items").keys.tolist() == expected


def test_lru_forgets_what_was_used_longest_ago():
    twin = BoundedTwin("lru", 3)
    for key in (1, 2, 3, 1):
        twin.train([key])

    twin.train([4])

    np.testing.assert_array_equal(dj.contains(twin.emb, "items", [1, 2, 3, 4]), [1, 0, 1, 1])


def test_lfu_counts_every_copy_of_an_id():
    twin = BoundedTwin("lfu", 3)
    twin.train([1, 2, 2, 3, 3, 3])
    twin.train([1, 1])

    twin.train([4])
    twin.train([5])

    drained = dj.drain_evicted(twin.emb, "items")
    assert (drained.keys.tolist(), drained.scores.tolist()) == ([2, 4], [2, 1])


def test_timestamps_are_nanoseconds_in_order():
    twin = BoundedTwin("timestamp", 2)
    twin.train([1])
    twin.train([2])
    twin.train([3])
    twin.train([4])

    drained = dj.drain_evicted(twin.emb, "items")

    assert drained.keys.tolist() == [1, 2]
    assert 1.6e18 < int(drained.scores[0]) < int(drained.scores[1]) < 1e19


def test_evaluation_changes_no_score():
    twin = BoundedTwin("lru", 2)
    twin.train([1])
    twin.train([2])

    dj.lookup(twin.emb, keys([1]), train=False)
    twin.train([3])

    assert not dj.contains(twin.emb, "items", [1])


def test_a_custom_score_never_goes_down():
    twin = BoundedTwin("custom", 2)
    twin.train([1, 2], scores=[9, 5])
    twin.train([1], scores=[1])  # comes late

    twin.train([3], scores=[7])

    np.testing.assert_array_equal(dj.contains(twin.emb, "items", [1, 2, 3]), [1, 0, 1])


def test_of_copies_the_largest_custom_score_counts():
    twin = BoundedTwin("custom", 2)
    twin.train([1, 1, 2, 1], scores=[3, 9, 5, 4])

    twin.train([3], scores=[0])

    twin.check([1, 2, 3])


def test_scores_of_64_bits_order_keys_and_at_their_maximum_keys_still_go():
    twin = BoundedTwin("custom", 2)
    top = np.array([LARGEST, 2**40], np.uint64)
    twin.train([1, 2], scores=top)
    twin.train([3], scores=top[:1])
    twin.train([4], scores=top[:1])

    drained = dj.drain_evicted(twin.emb, "items")

    assert drained.keys.tolist() == [2, min([1, 3], key=split_mix)]
    assert drained.scores.tolist() == [2**40, LARGEST]


@pytest.mark.parametrize(
    "scores",
    [
        np.array([-5, 3], np.int32),
        np.array([-5, 3], np.int64),
        np.array([0, 3], np.uint32),
        np.array([0, 3], np.uint8),
        jnp.array([-5, 3], jnp.int32),
        jnp.array([0, 3], jnp.uint32),
        dj.keys([0, 3]),
        [-5, 3],
    ],
    ids=str,
)
def test_scores_come_as_integers_of_any_kind(scores):
    emb = bounded("custom", 2, record=4, outstanding=1)
    _, emb = dj.lookup(emb, keys([1, 2]), scores=scores)

    _, emb = dj.lookup(emb, keys([3, 4]), scores=np.array([9, 9]))

    assert dj.drain_evicted(emb, "items").scores.tolist() == [0, 3]


def test_scores_go_through_jit_vmap_and_padding():
    emb = bounded("custom", 3, record=4, outstanding=1)
    look = jax.jit(lambda emb, ids, scores: dj.lookup(emb, ids, scores=scores)[1])
    ids = dj.Padded(jnp.array([[1, 2], [3, 0]]), lengths=jnp.array([2, 1]))
    emb = look(emb, ids, jnp.array([[4, 2], [6, 0]]))

    def lane(ids, scores, emb=emb):
        acts, emb = dj.lookup(emb, ids, scores=scores)
        return acts.rows, emb

    _, emb = jax.vmap(lane, out_axes=(0, None))(jnp.array([[7], [8]]), jnp.array([[9], [9]]))

    assert dj.drain_evicted(emb, "items").scores.tolist() == [2, 4]


def test_a_key_takes_nothing_over_from_the_key_that_made_way():
    twin = BoundedTwin("lru", 4, optimizer="adam_row")
    for step in range(3):
        twin.train(range(4), seed=step)

    twin.train(range(10, 14))

    twin.check([*range(4), *range(10, 14)])
    twin.train(range(4))  # and the first ones start afresh
    twin.check(range(14))


def test_keys_of_every_value_come_and_go():
    every = [*SPECIAL_KEYS, *SAME_LOW_HALF]
    twin = BoundedTwin("lru", 5)

    for turn in range(3):
        for key in every:
            twin.train([key], seed=turn)

    twin.check(every)


def test_copies_of_few_keys_take_few_rows():
    twin = BoundedTwin("lfu", 64, dim=1)

    twin.lookup(np.tile(np.arange(10), 10_000))

    assert (twin.stats.rows, twin.stats.growths, twin.stats.evicted) == (10, 0, 0)


def test_a_batch_with_more_new_keys_than_rows_refuses_the_surplus():
    twin = BoundedTwin("lru", 8)
    twin.train([100, 101])

    twin.train(np.repeat(np.arange(20), 2))

    twin.check([*range(20), 100, 101])
    assert twin.stats.refused == {"budget": 0, "pinned": 24, "admission": 0}
    assert twin.stats.rows == 8


def test_a_refused_id_gets_the_missing_row_and_no_update():
    emb = bounded("lru", 1, optimizer=dj.optimizers.sgd(1.0), missing_row=7.0)

    acts, emb = dj.lookup(emb, keys([1, 2]))
    emb = dj.apply_gradients(emb, acts, np.ones((2, 4), np.float32))

    assert_close(acts.rows[1], np.full(4, 7.0))
    assert dj.stats(emb)["items"].updated_rows == 1


def test_hits_of_a_batch_stay_wherever_its_new_keys_stand():
    twin = BoundedTwin("lru", 4)
    twin.train([1, 2, 3, 4])

    twin.train([10, 11, 1, 2])  # new ones first

    np.testing.assert_array_equal(dj.contains(twin.emb, "items", [1, 2, 3, 4]), [1, 1, 0, 0])


def test_keys_of_one_home_overflow_and_make_way_as_predicted():
    ids = range(20_000)
    same = [k for k, (home,) in zip(ids, paths(ids, 16, 1), strict=True) if home == 3]
    twin = BoundedTwin("lfu", 100, dim=1)
    rng = np.random.default_rng(0)

    for turn in range(60):
        twin.train(rng.choice(same[:150], 32), seed=turn)
        if turn % 10 == 9:
            twin.erase(same[turn : turn + 30])

    twin.check(same[:150])
    assert twin.stats.evicted > 100


def test_keys_of_one_home_are_all_found_in_a_table_with_room():
    ids = range(40_000)
    same = [k for k, (home,) in zip(ids, paths(ids, 64, 1), strict=True) if home == 3][:150]
    twin = BoundedTwin("lru", 1500, dim=1)
    twin.lookup(range(50_000, 51_200))

    twin.lookup(same)

    assert twin.stats.refused == {"budget": 0, "pinned": 0, "admission": 0}
    assert dj.contains(twin.emb, "items", same).all()


def test_growth_on_the_way_to_the_limit_keeps_rows_and_predictions():
    twin = BoundedTwin("lru", 200)

    for turn in range(12):
        twin.train(range(turn * 30, turn * 30 + 40), seed=turn)

    assert twin.stats.growths >= 3
    twin.check(range(400))


@pytest.mark.parametrize("dim", [1, 5])
@pytest.mark.parametrize("max_bytes", [1_000, 20_000, 33_333])
def test_the_bytes_of_a_table_follow_the_formula_and_keep_the_budget(max_bytes, dim):
    emb = bounded("lfu", None, dim, max_bytes=max_bytes, optimizer=dj.optimizers.adam(0.1))
    row = 4 * 3 * 4 * ((dim + 3) // 4) + 8  # row, two moments; stamp

    for turn in range(40):
        acts, emb = dj.lookup(emb, np.arange(64) + 64 * turn)
        emb = dj.apply_gradients(emb, acts, np.ones((64, dim), np.float32))
        stats = dj.stats(emb)["items"]
        assert stats.bytes <= max_bytes
        buckets = stats.capacity // 31
        assert stats.index_bytes == buckets * 528
        assert (stats.row_bytes - buckets * 260) % row == 0  # beside the scores
        assert stats.ids == stats.hits + stats.inserted + sum(stats.refused.values())

    assert stats.evicted > 0


def test_max_rows_and_max_bytes_bound_together():
    emb = bounded("lru", 40, max_bytes=1 << 20)

    for turn in range(4):
        _, emb = dj.lookup(emb, np.arange(32) + 32 * turn)

    assert dj.stats(emb)["items"].rows == 40


def test_a_table_without_a_policy_stores_no_score():
    plain = dj.create(dj.FeatureConfig(dj.TableConfig("items", 4, initial_rows=10)))
    scored = bounded("lru", 10, initial_rows=10)

    rows = [dj.stats(emb)["items"].row_bytes for emb in (plain, scored)]

    assert rows[1] - rows[0] == 260  # of one bucket


def test_assigning_to_a_full_table_evicts_by_the_same_rule():
    twin = BoundedTwin("lru", 4)
    for key in range(4):
        twin.train([key])

    twin.assign([0, 10, 11])

    twin.check(range(12))
    assert dj.contains(twin.emb, "items", [0, 3, 10, 11]).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_assigning_more_than_fits_is_refused_and_counted(policy):
    twin = BoundedTwin(policy, 4)

    twin.assign([*range(6), 0, 5])

    twin.check(range(6))
    assert twin.stats.assign_refused == 3


def test_erasing_makes_room_before_anything_has_to_go():
    twin = BoundedTwin("lru", 4)
    twin.train(range(4))

    twin.erase([3])
    twin.train([10])

    twin.check(range(11))
    assert twin.stats.evicted == 0


def test_what_is_recorded_is_bounded_and_the_rest_is_counted():
    emb = bounded("lru", 4, record=3, outstanding=1)
    for turn in range(3):
        _, emb = dj.lookup(emb, np.arange(4) + 4 * turn)

    first, second = dj.drain_evicted(emb, "items"), dj.drain_evicted(emb, "items")

    expected = sorted(range(4), key=split_mix)[:3]
    assert (first.keys.tolist(), first.lost) == (expected, 5)
    assert (first.keys.dtype, first.scores.dtype) == (np.uint64, np.uint64)
    assert (second.keys.size, second.lost) == (0, 0)


def test_a_lookup_that_is_replayed_scores_and_evicts_once():
    emb = bounded("lfu", 4, record=9)
    ids = keys([1, 2, 3, 4, 5])

    def loss(x, emb):
        acts, emb = jax.checkpoint(lambda emb: dj.lookup(emb, ids))(emb)
        return jnp.sum(acts.rows * x), (acts, emb)

    _, (acts, emb) = jax.grad(loss, has_aux=True)(jnp.float32(1.0), emb)
    emb = dj.apply_gradients(emb, acts, random_grads((5, 4)))
    _, emb = dj.lookup(emb, keys([6]))

    assert dj.drain_evicted(emb, "items").scores.tolist() == [1]
    assert dj.stats(emb)["items"].refused["pinned"] == 1


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "timestamp"])
def test_two_runs_evict_the_same_keys(policy):
    def run():
        emb = bounded(policy, 3000, record=1 << 20, outstanding=1)
        rng = np.random.default_rng(0)
        for _ in range(12):
            ids = rng.zipf(1.05, 5000) % 20_000
            scores = rng.integers(0, 9, 5000) if policy == "custom" else None
            _, emb = dj.lookup(emb, ids, scores=scores)
        return [*dj.drain_evicted(emb, "items"), dj.contains(emb, "items", np.arange(20_000))]

    first, second = run(), run()

    assert first[0].size > 3000
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "timestamp"])
def test_deterministic_tables_evict_the_same_keys_in_every_run(policy):
    def run():
        table = dj.TableConfig(
            "items",
            4,
            eviction=dj.eviction.ttl(eviction_of(policy, 300, record=RECORD), steps=9),
            admission=dj.admission.probability(0.8),
        )
        emb = dj.create(dj.FeatureConfig(table), deterministic=True)
        rng = np.random.default_rng(0)
        for turn in range(12):
            ids = rng.zipf(1.2, 128) % 2000
            scores = rng.integers(0, 9, 128) if policy == "custom" else None
            acts, emb = dj.lookup(emb, ids, scores=scores)
            emb = dj.apply_gradients(emb, acts, random_grads((128, 4), turn))
        drained, got = dj.drain_evicted(emb, "items"), dj.get(emb, "items", np.arange(2000))
        return [*drained, got.found, got.rows, got.state["accumulator"]]

    first, second = run(), run()

    assert first[0].size > 50
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
