"""Ragged bags in tables of every kind: who moves, refuses, evicts or rounds their rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynemb_jax as dj
from tests.oracle import ragged
from tests.oracle.pooling import COMBINERS
from tests.twin import assert_close, create, random_grads

# Bags of 2, 0, 3 and 0 ids; 9s are padding.
IDS = np.array([1, 2, 3, 1, 2, 9, 9, 9])
SPLITS = np.array([0, 2, 2, 5, 5], np.int32)
WEIGHTS = np.array([0.5, -2.0, 1.0, 0.25, 3.0, 7.0, 7.0, 7.0], np.float32)
TWO_BATCHES = np.stack([SPLITS, [0, 1, 4, 4, 6]]), np.stack([IDS, IDS + 1])
RULES = {
    "xla": dj.optimizers.from_optax(optax.adam(0.01), count="row"),
    "engine": dj.optimizers.adam(0.01, bias_correction="row"),
}


def with_rule(combiner, rule):
    first = dj.initializers.constant(0.5)
    one = dj.TableConfig("items", 3, optimizer=rule, initializer=first)
    other = dj.TableConfig("other", 3, optimizer=dj.optimizers.sgd(1.0), initializer=first)
    features = [dj.FeatureConfig(one, combiner), dj.FeatureConfig(one), dj.FeatureConfig(other)]
    return dj.create(features)


def looked_up(emb, splits, ids):
    bags = dj.Ragged(ids, splits, WEIGHTS if emb.group.features[0].config.combiner else None)
    return dj.lookup(emb, [bags, ids[:2], dj.Ragged(ids, splits)])


def two_lookups(emb):
    acts = []
    for splits, ids in zip(*map(jnp.asarray, TWO_BATCHES), strict=True):
        one, emb = looked_up(emb, splits, ids)
        acts.append(one)
    return dj.apply_gradients(emb, acts, [jax.tree.map(jnp.cos, one.rows) for one in acts])


def scanned(emb):
    def body(emb, batch):
        acts, emb = looked_up(emb, *batch)
        return emb, acts

    emb, acts = jax.lax.scan(body, emb, tuple(map(jnp.asarray, TWO_BATCHES)))
    return dj.apply_gradients(emb, acts, jax.tree.map(jnp.cos, acts.rows))


def mapped(emb):
    look = jax.vmap(functools.partial(looked_up, emb), out_axes=(0, None))
    acts, new = look(*map(jnp.asarray, TWO_BATCHES))
    grads = jax.tree.map(jnp.cos, acts.rows)
    return jax.vmap(lambda a, g: dj.apply_gradients(new, a, g), out_axes=None)(acts, grads)


@pytest.mark.parametrize(
    ("step", "combiner"),
    [(two_lookups, "mean"), (scanned, "sum"), (mapped, "sqrtn"), (two_lookups, None)],
)
def test_rules_of_optax_move_rows_as_the_engine_does(step, combiner):
    tables = {name: with_rule(combiner, rule) for name, rule in RULES.items()}

    tables = {name: jax.jit(step)(emb) for name, emb in tables.items()}

    known = np.arange(1, 11)
    xla, engine = (dj.get(tables[name], "items", known) for name in ("xla", "engine"))
    np.testing.assert_array_equal(xla.found, engine.found)
    assert_close(xla.rows, engine.rows)
    for part in ("mu", "nu", "count"):
        assert_close(xla.state[part], engine.state[part], what=part)
    others = [dj.get(emb, "other", known).rows for emb in tables.values()]
    np.testing.assert_array_equal(*others)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_gradients_are_clipped_after_the_bags_are_summed(combiner):
    rule = dj.optimizers.sgd(1.0, max_grad_norm=0.5)
    zeros = dj.initializers.constant(0.0)
    emb = create(3, combiner=combiner, optimizer=rule, initializer=zeros)
    grads = random_grads((4, 3))

    acts, emb = dj.lookup(emb, dj.Ragged(IDS, SPLITS, WEIGHTS))
    emb = dj.apply_gradients(emb, acts, grads)

    per_id, _ = ragged.pool_vjp(combiner, np.zeros((8, 3)), grads, SPLITS, WEIGHTS)
    sums = np.zeros((3, 3))
    np.add.at(sums, IDS[:5] - 1, per_id[:5])
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    assert (norms > 0.5).any()
    assert_close(dj.get(emb, "items", [1, 2, 3]).rows, -sums * np.minimum(1.0, 0.5 / norms))


@pytest.mark.parametrize("combiner", [None, "sum"])
def test_return_evicted_says_who_made_way_for_bags_and_not_for_padding(combiner):
    emb = create(3, combiner=combiner, eviction=dj.eviction.custom(max_rows=3))
    ids = dj.Ragged(np.array([1, 2, 3, 9]), np.array([0, 1, 3], np.int32))
    _, emb = dj.lookup(emb, ids, scores=np.array([7, 5, 6, 99]))
    nothing = np.zeros(0, int)
    for _ in range(4):  # no row waits for its update any more
        none = dj.Ragged(nothing, np.zeros(1, np.int32))
        _, emb = dj.lookup(emb, none, scores=nothing)

    @jax.jit
    def step(emb, ids, scores):
        return dj.lookup(emb, ids, scores=scores, return_evicted=True)

    new = dj.Ragged(dj.keys([4, 5, 9, 9]), jnp.array([0, 0, 1, 2], jnp.int32))
    acts, emb, gone = step(emb, new, jnp.array([8, 9, 99, 99]))

    assert acts.rows.shape == ((4, 3) if combiner is None else (3, 3))
    batch = gone["items"]
    assert int(batch.count) == 2
    assert np.asarray(batch.keys.pairs).view(np.uint64).ravel().tolist() == [2, 3, 0, 0]
    assert np.asarray(batch.scores.pairs).view(np.uint64).ravel().tolist() == [5, 6, 0, 0]
    assert dj.contains(emb, "items", np.array([1, 4, 5])).all()
    assert not dj.contains(emb, "items", np.array([2, 3, 9])).any()


def test_ids_that_are_not_admitted_give_the_missing_row_to_their_bag():
    ones = dj.initializers.constant(1.0)
    rare = dj.admission.frequency(2, counters=1 << 10)
    emb = create(3, combiner="sum", admission=rare, initializer=ones)

    acts, emb = dj.lookup(emb, dj.Ragged(IDS, SPLITS))

    assert_close(acts.rows[:, 0], np.array([0, 0, 2, 0]))  # the second 1 and 2 come in
    stats = dj.stats(emb)["items"]
    assert (stats.rows, stats.refused["admission"], stats.padded) == (2, 3, 3)


@pytest.mark.parametrize("combiner", [None, "mean"])
def test_bags_of_rows_of_16_bits_pool_in_float32(combiner):
    emb = create(3, combiner=combiner, dtype=jnp.bfloat16, rounding="nearest")

    acts, emb = dj.lookup(emb, dj.Ragged(IDS, SPLITS))

    rows = np.zeros((8, 3))
    rows[:5] = np.asarray(dj.get(emb, "items", IDS[:5]).rows, np.float64)
    expected = rows if combiner is None else ragged.pool(combiner, rows, SPLITS)
    assert acts.rows.dtype == jnp.bfloat16
    np.testing.assert_array_equal(
        acts.rows, jnp.asarray(expected.astype(np.float32)).astype(jnp.bfloat16)
    )
