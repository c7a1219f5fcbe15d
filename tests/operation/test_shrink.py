"""shrink gives back what keys have left, says how much, and changes no row."""

import numpy as np
import pytest

import dynemb_jax as dj
from tests.bounded import POLICIES, BoundedTwin, bounded, paths, resident_bytes
from tests.twin import SAME_LOW_HALF, SPECIAL_KEYS, Twin, create


@pytest.mark.parametrize("policy", POLICIES)
def test_every_key_keeps_its_row_state_and_score(policy):
    twin = BoundedTwin(policy, 500, optimizer="adam_row", ttl=1000)
    rng = np.random.default_rng(0)
    for turn in range(6):
        scores = rng.integers(0, 9, 120) if policy == "custom" else None
        twin.train(rng.integers(0, 600, 120), scores, seed=turn)
    twin.erase(list(twin.kept)[::2])

    assert twin.shrink() > 0
    twin.check(range(600))

    # Scores are seen by who goes next.
    for turn in range(8):
        scores = rng.integers(0, 9, 120) if policy == "custom" else None
        twin.train(rng.integers(1000, 2000, 120), scores, seed=turn)
    twin.check(range(600))
    assert twin.stats.evicted > 100


def test_keys_of_every_value_stay_and_a_grown_table_grows_again():
    twin = Twin(dim=3)
    every = [*SPECIAL_KEYS, *SAME_LOW_HALF]
    twin.train([*range(100, 3000), *every])
    twin.erase(range(100, 2900))

    twin.emb, freed = dj.shrink(twin.emb)
    twin.check()
    assert freed["items"] > 0
    twin.train([*range(5000, 9000), *every])

    twin.check()


@pytest.mark.parametrize("left", [0, 1, 31, 500, 4000])
def test_a_shrunk_table_is_as_large_as_a_new_one_of_its_rows(left):
    emb = create(8)
    _, emb = dj.lookup(emb, np.arange(5000))
    emb = dj.erase(emb, "items", np.arange(left, 5000))

    emb, _ = dj.shrink(emb)

    stats, new = dj.stats(emb)["items"], dj.stats(create(8, initial_rows=left))["items"]
    assert (stats.rows, stats.index_bytes) == (left, new.index_bytes)
    assert stats.row_bytes == new.row_bytes
    assert stats.rows_copied == 0  # that is growth's


def test_a_table_without_surplus_gives_nothing():
    emb = create(4, initial_rows=40)
    _, emb = dj.lookup(emb, np.arange(40))

    emb, freed = dj.shrink(emb)

    assert freed == {"items": 0}


def test_activations_from_before_are_stale():
    emb = create(4)
    _, emb = dj.lookup(emb, np.arange(100))
    emb = dj.erase(emb, "items", np.arange(50))
    acts, emb = dj.lookup(emb, np.arange(90, 95))

    emb, _ = dj.shrink(emb)

    with pytest.raises(dj.errors.StaleStateError, match="shrink"):
        dj.apply_gradients(emb, acts, np.ones((5, 4), np.float32))


def test_only_the_current_state_shrinks():
    old = create(4)
    _, emb = dj.lookup(old, np.arange(10))

    with pytest.raises(dj.errors.StaleStateError):
        dj.shrink(old)

    assert dj.contains(emb, "items", [1])


def test_each_table_of_a_group_says_what_it_gave():
    tables = {name: dj.TableConfig(name, 16) for name in ("a", "b")}
    emb = dj.create({name: dj.FeatureConfig(table) for name, table in tables.items()})
    _, emb = dj.lookup(emb, {"a": np.arange(4000), "b": np.arange(4000)})
    emb = dj.erase(emb, "b", np.arange(3990))
    before = dj.stats(emb)

    emb, freed = dj.shrink(emb)

    after = dj.stats(emb)
    assert freed == {name: before[name].bytes - after[name].bytes for name in "ab"}
    assert freed["b"] > 100 * freed["a"]


def memory_in_use(platform):
    """Bytes that the process, or its tables on a GPU, have."""
    if platform == "cpu":
        return resident_bytes()
    from dynemb_jax import _native_cuda

    return _native_cuda.driver_use()["allocated_bytes"]


def test_the_memory_goes_back_to_the_system(platform):
    emb = create(256, optimizer=dj.optimizers.sgd(1.0))
    for part in np.arange(1 << 17).reshape(8, -1):
        _, emb = dj.lookup(emb, part)  # 128 MiB of rows
    emb = dj.erase(emb, "items", np.arange(1000, 1 << 17))
    rows = dj.get(emb, "items", np.arange(1000)).rows
    before = memory_in_use(platform)

    emb, freed = dj.shrink(emb)

    assert freed["items"] > 120 << 20
    assert before - memory_in_use(platform) > 100 << 20
    np.testing.assert_array_equal(dj.get(emb, "items", np.arange(1000)).rows, rows)


def test_keys_of_one_home_are_found_in_fewer_buckets():
    ids = range(40_000)
    same = [k for k, (home,) in zip(ids, paths(ids, 64, 1), strict=True) if home == 3][:150]
    twin = BoundedTwin("lru", 3000, dim=1)
    twin.lookup([*range(50_000, 51_500), *same])
    twin.erase(range(50_000, 51_350))

    assert twin.shrink() > 0

    twin.check([*same, *range(50_000, 50_010)])
    assert dj.contains(twin.emb, "items", same).all()


def test_a_budget_holds_before_and_after():
    emb = bounded("lru", None, 16, max_bytes=1 << 18, outstanding=1)
    for turn in range(20):
        _, emb = dj.lookup(emb, np.arange(256) + 256 * turn)
    emb = dj.erase_if(emb, "items", score_below=dj.stats(emb)["items"].lookups)

    emb, freed = dj.shrink(emb)
    assert freed["items"] > 1 << 17
    for turn in range(20):
        _, emb = dj.lookup(emb, np.arange(256) + 256 * turn)
        assert dj.stats(emb)["items"].bytes <= 1 << 18


def test_clear_and_shrink_leave_an_empty_table_that_works():
    twin = BoundedTwin("lru", 100)
    twin.train(range(100))
    twin.clear()

    twin.shrink()

    assert twin.stats.bytes == 528 + 260  # a bucket and its scores
    twin.train(range(200))
    twin.check(range(200))


def test_closed_tables_say_so():
    emb = create(4)
    dj.close(emb)

    with pytest.raises(dj.errors.ClosedError):
        dj.shrink(emb)
