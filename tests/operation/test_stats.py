"""Counters: every id is accounted for exactly once."""

import dataclasses

import numpy as np
import pytest

import dynemb_jax as dj
from tests.twin import Twin, create


def test_every_id_is_a_hit_or_inserted_once():
    twin = Twin()

    twin.lookup([1, 1, 2])
    twin.lookup([1, 2, 3])

    stats = dj.stats(twin.emb)["items"]
    assert (stats.lookups, stats.ids, stats.inserted, stats.hits) == (2, 6, 3, 3)
    twin.check()


def test_a_fresh_table_has_counted_nothing():
    stats = dj.stats(create())["items"]

    counted = dataclasses.asdict(stats)
    for name in ("capacity", "bytes", "index_bytes", "row_bytes", "load"):
        counted.pop(name)
    assert not any(v if not isinstance(v, dict) else sum(v.values()) for v in counted.values())


def test_bytes_are_those_of_the_index_and_the_rows():
    twin = Twin(dim=16)
    twin.train(range(1000))

    stats = dj.stats(twin.emb)["items"]

    assert stats.bytes == stats.index_bytes + stats.row_bytes
    # A row and its accumulator, and at least a key and a row number in the index.
    assert stats.row_bytes >= 1000 * 16 * 4 * 2
    assert stats.index_bytes >= 1000 * 12


def test_load_is_rows_over_capacity_and_within_its_limit():
    twin = Twin(max_load=0.5)
    twin.train(range(1000))

    stats = dj.stats(twin.emb)["items"]

    assert stats.load == pytest.approx(stats.rows / stats.capacity)
    assert stats.load <= 0.5


def test_initial_rows_fit_without_growth():
    twin = Twin(dim=1, initial_rows=3000)

    twin.train(range(3000))

    stats = dj.stats(twin.emb)["items"]
    assert (stats.rows, stats.growths) == (3000, 0)


def test_tables_of_a_group_are_counted_apart():
    features = {n: dj.FeatureConfig(dj.TableConfig(n, 2)) for n in ("a", "b")}
    emb = dj.create(features)

    acts, emb = dj.lookup(emb, {"a": np.array([1, 2, 2]), "b": np.array([5])})
    grads = {"a": np.ones((3, 2), np.float32), "b": np.ones((1, 2), np.float32)}
    emb = dj.apply_gradients(emb, acts, grads)

    stats = dj.stats(emb)
    assert {n: (s.rows, s.ids, s.hits, s.updated_rows) for n, s in stats.items()} == {
        "a": (2, 3, 1, 2),
        "b": (1, 1, 0, 1),
    }


def test_stats_are_a_frozen_copy():
    twin = Twin()
    before = dj.stats(twin.emb)["items"]

    twin.lookup([1])

    assert before.rows == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.rows = 5


def test_refused_updates_and_failed_calls_count_nothing():
    twin = Twin()
    acts = twin.lookup([1])

    with pytest.raises(dj.errors.DynembError):
        dj.apply_gradients(twin.emb, acts, np.ones((2, 4), np.float32))

    twin.check()
