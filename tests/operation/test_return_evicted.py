"""A lookup says which keys made way for its own, in arrays that jit can use."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.bounded import bounded
from tests.oracle.bounded_table import split_mix
from tests.twin import create, keys

ONES = np.ones((4, 4), np.float32)


def words(pairs):
    """Keys as Python integers."""
    return np.asarray(pairs.pairs).view(np.uint64).reshape(-1).tolist()


def evicted(batch):
    """The keys and scores that are meant."""
    count = int(batch.count)
    assert not any(words(batch.keys)[count:] + words(batch.scores)[count:])
    return words(batch.keys)[:count], words(batch.scores)[:count]


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("policy", ["lru", "lfu", "decayed", "timestamp"])
def test_it_says_what_drain_evicted_says(policy, jit):
    emb = bounded(policy, 40, record=1000, outstanding=1)
    look = lambda emb, ids: dj.lookup(emb, ids, return_evicted=True)  # noqa: E731
    look = jax.jit(look) if jit else look
    rng = np.random.default_rng(0)

    some = 0
    for _ in range(10):
        _, emb, gone = look(emb, dj.keys(rng.integers(-(2**63), 2**63, 24)))
        drained = dj.drain_evicted(emb, "items")
        assert gone["items"].keys.shape == gone["items"].scores.shape == (24,)
        assert evicted(gone["items"]) == (drained.keys.tolist(), drained.scores.tolist())
        some += int(gone["items"].count)

    assert some == dj.stats(emb)["items"].evicted > 100


def test_a_table_needs_no_record_for_it():
    emb = bounded("lru", 2, outstanding=1)
    _, emb = dj.lookup(emb, keys([1, 2]))

    _, emb, gone = dj.lookup(emb, keys([1, 3, -1]), return_evicted=True)

    assert evicted(gone["items"]) == ([2], [1])


def test_tables_are_named_and_those_that_evict_nobody_are_left_out():
    tables = {
        "a": dj.TableConfig("first", 4, eviction=dj.eviction.lru(max_rows=1)),
        "b": dj.TableConfig("growing", 4),
        "c": dj.TableConfig("last", 4, eviction=dj.eviction.lfu(max_rows=1)),
        "d": dj.TableConfig("dropping", 4, eviction=dj.eviction.lru(max_rows=1), on_full="drop"),
    }
    features = {name: dj.FeatureConfig(table) for name, table in tables.items()}
    emb = dj.create({**features, "e": features["c"]}, max_outstanding=1)
    ids = {name: keys([place]) for place, name in enumerate("abcd")} | {"e": None}
    _, emb = dj.lookup(emb, ids)

    ids = {name: keys([10 + place]) for place, name in enumerate("abcd")} | {"e": keys([12, 12])}
    _, emb, gone = dj.lookup(emb, ids, return_evicted=True)

    assert list(gone) == ["first", "last"]
    assert evicted(gone["first"]) == ([0], [1])
    assert evicted(gone["last"]) == ([2], [1])
    assert gone["last"].keys.shape == (3,)


def test_it_works_in_scan_and_under_vmap():
    emb = bounded("lru", 4, outstanding=1)
    _, emb = dj.lookup(emb, keys([1, 2, 3, 4]))

    def turn(emb, ids):
        acts, emb, gone = dj.lookup(emb, ids, return_evicted=True)
        return dj.apply_gradients(emb, acts, jnp.ones_like(acts.rows)), gone["items"]

    emb, gone = jax.lax.scan(turn, emb, jnp.array([[5, 6], [7, 8]]))
    assert words(gone.keys) == sorted([1, 2, 3, 4], key=split_mix)
    assert gone.count.tolist() == [2, 2]

    def lane(ids, emb=emb):
        acts, emb, gone = dj.lookup(emb, ids, return_evicted=True)
        return acts.rows, emb, gone

    _, emb, gone = jax.vmap(lane, out_axes=(0, None, None))(jnp.array([[10], [7], [11]]))
    assert evicted(gone["items"]) == (sorted([5, 6], key=split_mix), [2, 2])


def test_a_lookup_that_is_replayed_says_the_same():
    emb = bounded("lru", 2, outstanding=1)
    _, emb = dj.lookup(emb, keys([1, 2]))

    def loss(x, emb):
        def inner(x, emb):
            acts, emb, gone = dj.lookup(emb, keys([3, 4]), return_evicted=True)
            scale = gone["items"].count.astype(jnp.float32)  # 2, and again in the backward pass
            return jnp.sum(jnp.sin(acts.rows * x) * scale), (acts, emb, gone)

        return jax.checkpoint(inner)(x, emb)

    slope, (acts, emb, gone) = jax.grad(loss, has_aux=True)(jnp.float32(0.5), emb)

    rows = np.asarray(acts.rows)
    np.testing.assert_allclose(slope, 2 * np.sum(np.cos(rows * 0.5) * rows), rtol=1e-5)
    assert evicted(gone["items"]) == (sorted([1, 2], key=split_mix), [1, 1])
    assert dj.stats(emb)["items"].evicted == 2


def test_acts_are_those_of_a_lookup_that_was_not_asked():
    asked, plain = bounded("lru", 4), bounded("lru", 4)
    for _ in range(3):
        acts, asked, _ = dj.lookup(asked, keys([1, 2, 3, 4]), return_evicted=True)
        asked = dj.apply_gradients(asked, acts, ONES)
        other, plain = dj.lookup(plain, keys([1, 2, 3, 4]))
        plain = dj.apply_gradients(plain, other, ONES)

    np.testing.assert_array_equal(acts.rows, other.rows)
    assert acts.plans == other.plans


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: dj.lookup(create(), keys([1]), return_evicted=True), "on_full"),
        (
            lambda: dj.lookup(bounded("lru", 4), keys([1]), train=False, return_evicted=True),
            "train=False",
        ),
        (lambda: dj.lookup(bounded("lru", 4), keys([1]), return_evicted=1), "got 1"),
    ],
)
def test_where_nothing_can_be_evicted_it_is_an_error(call, text):
    with pytest.raises(dj.errors.InputError, match=rf"return_evicted.*{text}"):
        call()
