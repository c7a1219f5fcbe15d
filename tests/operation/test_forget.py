"""erase_if and clear forget many keys at once; what comes back starts afresh."""

import jax
import numpy as np
import pytest

import dynemb_jax as dj
from tests.bounded import BoundedTwin, bounded
from tests.twin import create, keys, random_grads


def test_erase_if_forgets_what_was_not_used_for_some_lookups():
    twin = BoundedTwin("lru", 50)
    for turn in range(10):
        twin.train([turn, turn + 1])

    twin.erase_if(dj.stats(twin.emb)["items"].lookups - 2)

    twin.check(range(12))
    assert sorted(twin.kept) == [7, 8, 9, 10]


@pytest.mark.parametrize("policy", ["lru", "lfu", "custom"])
def test_erase_if_frees_rows_for_new_keys(policy):
    twin = BoundedTwin(policy, 8, on_full="drop")
    twin.train(range(8), scores=np.arange(8) if policy == "custom" else None)
    twin.train([5, 6, 7], scores=[9, 9, 9] if policy == "custom" else None)

    twin.erase_if(2)
    twin.train(range(20, 30), scores=[1] * 10 if policy == "custom" else None)

    twin.check(range(30))


def test_erase_if_reaches_all_64_bits():
    emb = bounded("custom", 8)
    _, emb = dj.lookup(emb, keys([1, 2]), scores=np.array([2**63, 2**64 - 1], np.uint64))

    emb = dj.erase_if(emb, "items", score_below=2**64 - 1)

    np.testing.assert_array_equal(dj.contains(emb, "items", [1, 2]), [0, 1])


def test_erase_if_by_time_forgets_what_came_before():
    emb = bounded("timestamp", 8)
    _, emb = dj.lookup(emb, keys([1, 2]))

    same = dj.erase_if(emb, "items", score_below=10**18)
    assert dj.contains(same, "items", [1, 2]).all()

    emb = dj.erase_if(same, "items", score_below=10**19)
    assert not dj.contains(emb, "items", [1, 2]).any()


def test_clear_forgets_all_and_keeps_the_memory():
    twin = BoundedTwin("lfu", 100)
    twin.train(range(80))
    size = twin.stats.bytes

    twin.clear()
    twin.check(range(80))
    twin.train(range(40, 120))

    twin.check(range(120))
    assert (twin.stats.bytes, twin.stats.erased) == (size, 80)


def test_clear_works_without_a_policy():
    emb = create()
    acts, emb = dj.lookup(emb, keys([1, 2]))
    emb = dj.apply_gradients(emb, acts, random_grads((2, 4)))

    emb = dj.clear(emb, "items")
    again, emb = dj.lookup(emb, keys([1, 2]))

    np.testing.assert_array_equal(acts.rows, again.rows)


FORGET = {
    "erase_if": lambda emb: dj.erase_if(emb, "items", score_below=9),
    "clear": lambda emb: dj.clear(emb, "items"),
}


@pytest.mark.parametrize("call", FORGET)
def test_acts_from_before_are_stale_if_a_key_went(call):
    emb = bounded("lru", 8)
    nothing = FORGET[call](emb)
    acts, emb = dj.lookup(nothing, keys([1]))

    emb = FORGET[call](emb)

    with pytest.raises(dj.errors.StaleStateError):
        dj.apply_gradients(emb, acts, np.ones((1, 4), np.float32))


@pytest.mark.parametrize("call", FORGET)
def test_only_the_current_state_forgets(call):
    old = bounded("lru", 8)
    _, emb = dj.lookup(old, keys([1]))

    with pytest.raises(dj.errors.StaleStateError):
        FORGET[call](old)

    assert dj.contains(emb, "items", [1])


@pytest.mark.parametrize("call", FORGET)
def test_a_donated_state_is_refused(call):
    emb = bounded("lru", 8)
    jax.jit(lambda emb: dj.lookup(emb, keys([1]))[1], donate_argnums=0)(emb)

    with pytest.raises(dj.errors.StaleStateError):
        FORGET[call](emb)
