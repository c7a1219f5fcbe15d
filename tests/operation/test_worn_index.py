"""Erasing and inserting for ever leaves a table right, within its budget."""

import numpy as np
import pytest

import dynemb_jax as dj
from tests.twin import create


def test_contents_survive_turnover_at_one_size():
    emb = create(2, optimizer=dj.optimizers.sgd(1.0), max_load=0.85)
    held = np.arange(1600)  # close to the limit of 1,984 slots
    _, emb = dj.lookup(emb, held)
    growths = dj.stats(emb)["items"].growths

    for turn in range(40):
        leaving, held = held[:400], held[400:]
        fresh = np.arange(400) + 10_000 * (turn + 1)
        emb = dj.erase(emb, "items", leaving)
        _, emb = dj.lookup(emb, fresh)
        held = np.concatenate([held, fresh])

    assert dj.stats(emb)["items"].growths == growths
    assert dj.stats(emb)["items"].rows == held.size
    assert dj.contains(emb, "items", held).all()
    assert not dj.contains(emb, "items", leaving).any()


@pytest.mark.parametrize("max_bytes", [600, 1_000, 13_878, 20_000, 33_333, 100_001])
@pytest.mark.parametrize("dim", [1, 5])
def test_a_budget_is_kept_while_rows_and_index_grow_in_turn(max_bytes, dim):
    emb = create(dim, optimizer=dj.optimizers.sgd(1.0), max_bytes=max_bytes, on_full="drop")

    for turn in range(24):
        _, emb = dj.lookup(emb, np.arange(16) + 16 * turn)
        stats = dj.stats(emb)["items"]
        assert stats.bytes <= max_bytes
        assert stats.ids == stats.hits + stats.inserted + sum(stats.refused.values())


def test_a_budget_below_the_smallest_table_is_a_mistake():
    with pytest.raises(dj.errors.ConfigError, match="max_bytes"):
        create(4, max_bytes=100)
