"""Rows that wait for their update stay; lookups whose update never comes block nobody."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.bounded import BoundedTwin, bounded
from tests.twin import assert_close, keys

ONES = np.ones((2, 4), np.float32)


def test_rows_of_two_lookups_stay_until_both_are_updated():
    twin = BoundedTwin("lru", 4)
    query, candidate = twin.lookup([1, 2]), twin.lookup([3, 4])

    third = twin.lookup([5, 6])  # finds nobody who may go

    assert twin.stats.refused["pinned"] == 2
    for looked in (query, candidate, third):
        assert twin.update([looked]) is None
    twin.check([1, 2, 3, 4, 5, 6])


def test_one_update_over_two_lookups_retires_both():
    twin = BoundedTwin("lru", 4)
    both = [twin.lookup([1, 2]), twin.lookup([3, 4, 1])]

    assert twin.update(both) is None
    twin.train([5, 6, 7, 8])

    twin.check(range(9))
    assert twin.stats.evicted == 4


def test_updates_may_come_in_any_order():
    twin = BoundedTwin("lru", 4)
    first, second = twin.lookup([1, 2]), twin.lookup([3, 4])

    assert twin.update([second]) is None
    twin.train([5])  # all rows were touched since the first lookup
    assert twin.update([first]) is None
    twin.train([6])

    twin.check(range(7))
    assert (twin.stats.refused["pinned"], twin.stats.evicted) == (1, 1)


def test_a_stream_of_lookups_without_updates_keeps_evicting():
    emb = bounded("lru", 8, outstanding=2)

    for turn in range(20):
        _, emb = dj.lookup(emb, np.arange(4) + 4 * turn)

    stats = dj.stats(emb)["items"]
    assert (stats.evicted, stats.refused["pinned"]) == (72, 0)


def test_with_one_outstanding_lookup_only_the_batch_itself_is_pinned():
    emb = bounded("lru", 8, outstanding=1)

    for turn in range(20):
        _, emb = dj.lookup(emb, np.arange(8) + 8 * turn)

    assert dj.stats(emb)["items"].refused["pinned"] == 0


@pytest.mark.parametrize("outstanding", [1, 2, 4])
def test_an_update_behind_too_many_lookups_is_refused_and_changes_nothing(outstanding):
    emb = bounded("lru", 4, outstanding=outstanding)
    acts, emb = dj.lookup(emb, keys([1, 2]))
    for turn in range(outstanding + 1):
        _, emb = dj.lookup(emb, keys([10 + 2 * turn, 11 + 2 * turn]))
        _, emb = dj.lookup(emb, keys([20 + 2 * turn, 21 + 2 * turn]))
    before, rows = dj.stats(emb), dj.get(emb, "items", np.arange(40))

    with pytest.raises(dj.errors.TooManyOutstandingError, match=f"max_outstanding={outstanding}"):
        dj.apply_gradients(emb, acts, ONES)

    assert dj.stats(emb) == before
    np.testing.assert_array_equal(dj.get(emb, "items", np.arange(40)).rows, rows.rows)
    acts, emb = dj.lookup(emb, keys([1, 2]))  # and emb is still the current state
    dj.apply_gradients(emb, acts, ONES)


def test_a_released_lookup_may_be_applied_while_nothing_was_evicted():
    twin = BoundedTwin("lru", 50, outstanding=1)
    first = twin.lookup([1, 2])
    for key in range(10, 20):
        twin.lookup([key, key])

    assert twin.update([first]) is None

    twin.check([1, 2])


def test_a_step_that_raises_between_lookup_and_update_blocks_nothing():
    twin = BoundedTwin("lru", 4, outstanding=2)
    twin.lookup([1, 2, 3, 4])  # the exception: its update never comes

    for key in range(10, 20):
        twin.train([key])

    twin.check(range(20))
    assert twin.stats.refused["pinned"] == 1


def test_an_exception_of_apply_keeps_the_lookup_outstanding():
    emb = bounded("lru", 2)
    acts, emb = dj.lookup(emb, keys([1, 2]))
    with pytest.raises(dj.errors.InputError):
        dj.apply_gradients(emb, acts, ONES[:1])

    _, emb = dj.lookup(emb, keys([3]))
    emb = dj.apply_gradients(emb, acts, ONES)

    assert dj.contains(emb, "items", [1, 2]).all()


def test_tables_of_one_group_share_the_window():
    small = dj.TableConfig("small", 4, eviction=dj.eviction.lru(max_rows=1))
    plain = dj.TableConfig("plain", 4)
    emb = dj.create([dj.FeatureConfig(small), dj.FeatureConfig(plain)], max_outstanding=2)
    acts, emb = dj.lookup(emb, [keys([1]), None])
    for key in range(3):
        _, emb = dj.lookup(emb, [None, keys([key])])

    _, emb = dj.lookup(emb, [keys([2]), None])

    with pytest.raises(dj.errors.TooManyOutstandingError, match="small"):
        dj.apply_gradients(emb, acts, [ONES[:1], None])


def test_acts_of_an_unbounded_table_wait_as_long_as_they_like():
    emb = dj.create(dj.FeatureConfig(dj.TableConfig("items", 4)), max_outstanding=1)
    acts, emb = dj.lookup(emb, keys([1, 2]))
    for turn in range(10):
        _, emb = dj.lookup(emb, keys([turn + 10]))

    emb = dj.apply_gradients(emb, acts, ONES)

    assert dj.stats(emb)["items"].updated_rows == 2


def test_micro_batches_stacked_by_scan_are_one_exact_update():
    rule = dj.optimizers.sgd(1.0)
    emb = bounded("lru", 8, optimizer=rule)
    batches = jnp.array([[1, 2], [3, 1], [4, 5]])

    @functools.partial(jax.jit, donate_argnums=0)
    def step(emb, batches):
        def look(emb, ids):
            acts, emb = dj.lookup(emb, ids)
            return emb, acts

        emb, acts = jax.lax.scan(look, emb, batches)
        return dj.apply_gradients(emb, acts, jnp.ones_like(acts.rows))

    acts, emb = dj.lookup(emb, jnp.arange(1, 6))
    emb = dj.apply_gradients(emb, acts, np.zeros((5, 4), np.float32))
    first = dj.get(emb, "items", [1, 2, 3, 4, 5])
    emb = step(emb, batches)

    expected = first.rows - np.array([2, 1, 1, 1, 1], np.float32)[:, None]
    assert_close(dj.get(emb, "items", [1, 2, 3, 4, 5]).rows, expected)


def test_the_error_has_its_class_inside_of_jit_too():
    emb = bounded("lru", 1, outstanding=1)
    acts, emb = dj.lookup(emb, keys([1]))
    for key in (2, 3):
        _, emb = dj.lookup(emb, keys([key]))

    def apply():
        with dj.errors.typed():
            applied = jax.block_until_ready(jax.jit(dj.apply_gradients)(emb, acts, ONES[:1]))
        dj.stats(applied)  # a GPU tells later

    with pytest.raises(dj.errors.TooManyOutstandingError):
        apply()
