"""Budgets: a full table does what on_full says, and says so in numbers."""

import numpy as np
import pytest

import dynemb_jax as dj
from tests.twin import Twin, assert_close, contents, create

MAX_BYTES = 1 << 20
DIM = 64
BATCH = 256


def fill(emb):
    """Inserts fresh keys until the table is full; returns the state and the next fresh key."""
    fresh = 0
    for _ in range(64):
        try:
            _, emb = dj.lookup(emb, np.arange(fresh, fresh + BATCH))
        except dj.errors.TableFullError:
            return dj.resync(emb), fresh
        fresh += BATCH
        if sum(dj.stats(emb)["items"].refused.values()):
            return emb, fresh
    raise AssertionError("a budget of one MiB held 16,384 rows of 64 numbers")


def budgeted(on_full, **config):
    return create(DIM, max_bytes=MAX_BYTES, on_full=on_full, **config)


def test_the_budget_is_kept():
    for on_full in ("error", "drop"):
        emb, _ = fill(budgeted(on_full))

        stats = dj.stats(emb)["items"]
        assert stats.bytes <= MAX_BYTES
        # Rows of 64 numbers and as many accumulators: the budget is used, not only respected.
        assert stats.rows * DIM * 8 > MAX_BYTES // 4


def test_error_changes_nothing():
    emb, fresh = fill(budgeted("error"))
    before = contents(emb)
    mixed = np.concatenate([np.arange(10), np.arange(fresh, fresh + 20_000)])

    with pytest.raises(dj.errors.TableFullError):
        dj.lookup(emb, mixed)

    emb = dj.resync(emb)
    assert contents(emb) == before
    assert not dj.contains(emb, "items", np.arange(fresh, fresh + 20_000)).any()


def test_error_says_the_numbers():
    emb, fresh = fill(budgeted("error"))

    with pytest.raises(
        dj.errors.TableFullError, match=rf"(?s)items.*{MAX_BYTES}|{MAX_BYTES}.*items"
    ):
        dj.lookup(emb, np.arange(fresh, fresh + 20_000))


def test_a_full_table_still_serves_and_trains_its_rows():
    emb, _ = fill(budgeted("error", optimizer=dj.optimizers.sgd(1.0)))

    acts, emb = dj.lookup(emb, np.arange(BATCH))
    emb = dj.apply_gradients(emb, acts, np.ones((BATCH, DIM), np.float32))

    assert_close(dj.get(emb, "items", np.arange(BATCH)).rows, np.asarray(acts.rows) - 1)


def test_erasing_makes_room_again():
    emb, fresh = fill(budgeted("error"))

    emb = dj.erase(emb, "items", np.arange(BATCH))
    _, emb = dj.lookup(emb, np.arange(fresh, fresh + BATCH))

    assert dj.contains(emb, "items", np.arange(fresh, fresh + BATCH)).all()


def test_drop_refuses_new_keys_and_counts_them():
    emb, fresh = fill(budgeted("drop"))
    before = dj.stats(emb)["items"]
    ids = np.concatenate([np.arange(10), np.repeat(np.arange(fresh, fresh + 50), 2)])

    acts, emb = dj.lookup(emb, ids)

    after = dj.stats(emb)["items"]
    refused = sum(after.refused.values()) - sum(before.refused.values())
    assert (after.rows, after.hits - before.hits, refused) == (before.rows, 10, 100)
    assert not np.asarray(acts.rows)[10:].any()
    np.testing.assert_array_equal(acts.rows[:10], dj.get(emb, "items", np.arange(10)).rows)


def test_drop_fills_the_last_places_and_accounts_for_every_id():
    emb, fresh = fill(budgeted("drop"))

    stats = dj.stats(emb)["items"]

    assert stats.ids == stats.hits + stats.inserted + sum(stats.refused.values()) == fresh
    assert stats.inserted == stats.rows < fresh
    kept = dj.contains(emb, "items", np.arange(fresh))
    assert kept.sum() == stats.rows
    assert kept[: fresh - BATCH].all()


@pytest.mark.parametrize("missing_row", [0.5, "initializer"])
def test_drop_gives_the_missing_row(missing_row):
    emb, fresh = fill(budgeted("drop", missing_row=missing_row))
    ids = np.arange(fresh, fresh + 10)

    acts, emb = dj.lookup(emb, ids)
    found, _ = dj.lookup(emb, ids, train=False)

    np.testing.assert_array_equal(acts.rows, found.rows)
    assert np.asarray(acts.rows).any()


def test_refused_keys_take_no_gradient():
    emb, fresh = fill(budgeted("drop", optimizer=dj.optimizers.sgd(1.0)))
    known = dj.get(emb, "items", np.arange(fresh))
    ids = np.array([0, fresh, fresh + 1, 0])

    acts, emb = dj.lookup(emb, ids)
    emb = dj.apply_gradients(emb, acts, np.ones((4, DIM), np.float32))

    expected = known.rows.copy()
    expected[0] -= 2
    assert_close(dj.get(emb, "items", np.arange(fresh)).rows, expected)
    assert dj.stats(emb)["items"].updated_rows == 1


def test_refused_ids_count_in_the_mean():
    emb = create(DIM, combiner="mean", max_bytes=MAX_BYTES, on_full="drop", missing_row=0.0)
    fresh = 0
    while not sum(dj.stats(emb)["items"].refused.values()):
        _, emb = dj.lookup(emb, np.arange(fresh, fresh + BATCH)[:, None])
        fresh += BATCH

    acts, emb = dj.lookup(emb, np.array([[0, fresh, fresh + 1, fresh + 2]]))

    assert_close(acts.rows, dj.get(emb, "items", np.array([0])).rows / 4)


def test_without_a_budget_nothing_is_refused():
    twin = Twin(dim=1)

    twin.lookup(range(5000))

    assert not sum(dj.stats(twin.emb)["items"].refused.values())


def test_a_budget_too_small_for_the_initial_rows_is_refused_at_construction():
    with pytest.raises((dj.errors.ConfigError, dj.errors.TableFullError)):
        create(DIM, max_bytes=1000, initial_rows=1_000_000)


def test_a_full_table_keeps_its_neighbour_as_it_was():
    full = dj.TableConfig("full", DIM, max_bytes=MAX_BYTES)
    emb = dj.create([dj.FeatureConfig(dj.TableConfig("free", 4)), dj.FeatureConfig(full)])

    with pytest.raises(dj.errors.TableFullError, match="full"):
        dj.lookup(emb, [np.arange(100), np.arange(20_000)])

    emb = dj.resync(emb)
    assert {n: (s.rows, s.ids, s.lookups) for n, s in dj.stats(emb).items()} == {
        "free": (0, 0, 0),
        "full": (0, 0, 0),
    }
    acts, emb = dj.lookup(emb, [np.arange(100), np.arange(100)])
    assert acts.rows[0].shape == (100, 4)


def test_ids_stay_accounted_for_when_an_assign_is_dropped():
    emb, fresh = fill(budgeted("drop"))

    emb = dj.assign(emb, "items", np.arange(fresh, fresh + 8), np.ones((8, DIM), np.float32))

    stats = dj.stats(emb)["items"]
    assert stats.ids == stats.hits + stats.inserted + sum(stats.refused.values())


def test_assigning_beyond_the_budget_changes_nothing():
    emb, fresh = fill(budgeted("error"))
    before = contents(emb)
    ids = np.arange(fresh, fresh + 20_000)

    with pytest.raises(dj.errors.TableFullError):
        dj.assign(emb, "items", ids, np.ones((20_000, DIM), np.float32))

    emb = dj.resync(emb)
    assert contents(emb) == before
