"""Groups as large as a GPU call takes, and one larger: it works, or says how many are too many.

One update takes 128 lookups, one call 256 tables. Features are as many as one likes.
"""

import functools

import jax
import numpy as np
import pytest

import dynemb_jax as dj
from tests.oracle.dict_table import DictTable
from tests.oracle.row_init import Uniform
from tests.plugins import OPTIMIZERS
from tests.twin import assert_close, random_grads

MANY, MAX_LOOKUPS, MAX_TABLES = 300, 128, 256
BATCH = 6
# Every kind of optimizer, every width class, in turn.
KINDS = list(OPTIMIZERS)
DIMS = (1, 4, 33, 64, 130)


class Collection:
    """Features over tables, feature f of table f modulo their number, beside dictionaries."""

    def __init__(self, num_features, num_tables, closing, seed=0):
        self.num_features, self.num_tables = num_features, num_tables
        kinds = [KINDS[t % len(KINDS)] for t in range(num_tables)]
        self.dims = [DIMS[t % len(DIMS)] for t in range(num_tables)]
        configs = [
            dj.TableConfig(f"t{t}", dim, optimizer=OPTIMIZERS[kind][0])
            for t, (dim, kind) in enumerate(zip(self.dims, kinds, strict=True))
        ]
        features = [dj.FeatureConfig(configs[f % num_tables]) for f in range(num_features)]
        self.emb = closing(dj.create(features, seed=seed))
        self.oracles = [
            DictTable(f"t{t}", dim, optimizer=OPTIMIZERS[kind][1], first_rows=Uniform(), seed=seed)
            for t, (dim, kind) in enumerate(zip(self.dims, kinds, strict=True))
        ]
        # Global bias corrections count the group's updates, not a table's.
        self.updates = 0

    def ids(self, step, among=None):
        """Ids of each feature, with duplicates within and between features; None for the others."""
        rng = np.random.default_rng(step)
        drawn = [rng.integers(-5, 5, BATCH).astype(np.int32) for _ in range(self.num_features)]
        chosen = range(self.num_features) if among is None else among
        return [ids if f in chosen else None for f, ids in enumerate(drawn)]

    def grads(self, ids, step):
        """Gradients of each feature that has ids."""
        return [
            None
            if one is None
            else random_grads((BATCH, self.dims[f % self.num_tables]), 1000 * step + f)
            for f, one in enumerate(ids)
        ]

    def train(self, step, among=None, lookup=dj.lookup, update=dj.apply_gradients):
        """One step over some features; both sides."""
        ids = self.ids(step, among)
        grads = self.grads(ids, step)
        acts, self.emb = lookup(self.emb, ids)
        self.emb = update(self.emb, acts, grads)
        for table, oracle in enumerate(self.oracles):
            own = [
                f for f in range(table, self.num_features, self.num_tables) if ids[f] is not None
            ]
            if not own:
                continue
            for f in own:
                assert_close(acts.rows[f], oracle.find(ids[f], missing_row="initializer"))
            together = np.concatenate([ids[f] for f in own])
            oracle.lookup(together)
            oracle.apply(together, np.concatenate([grads[f] for f in own]), step=self.updates)
        self.updates += 1

    def check(self):
        """All rows of all tables."""
        known = np.arange(-6, 6)
        for table, oracle in enumerate(self.oracles):
            got = dj.get(self.emb, f"t{table}", known)
            np.testing.assert_array_equal(got.found, oracle.contains(known))
            assert_close(got.rows, oracle.values(known), what=f"t{table}")
            # Of up to some hundred gradients of order one, added up as floats in any order.
            for name, value in oracle.state(known).items():
                assert_close(got.state[name], value, atol=1e-5, what=f"t{table} {name}")


@pytest.mark.parametrize("num_tables", [1, 3, 100, 128])
def test_hundreds_of_features_are_right(num_tables, closing):
    collection = Collection(MANY, num_tables, closing)

    for step in range(3):
        collection.train(step)

    collection.check()


def test_hundreds_of_features_are_right_under_jit(closing):
    collection = Collection(MANY, 20, closing)
    lookup, update = jax.jit(dj.lookup), jax.jit(dj.apply_gradients)

    for step in range(3):
        collection.train(step, lookup=lookup, update=update)

    collection.check()


@pytest.mark.parametrize("excess", [0, 1])
def test_as_many_lookups_as_an_update_takes_are_one_update(excess, closing):
    collection = Collection(1, 1, closing)
    oracle, emb = collection.oracles[0], collection.emb
    lookup = jax.jit(functools.partial(dj.lookup))
    batches = [np.array([i % 50, i // 7, -1], np.int32) for i in range(MAX_LOOKUPS + excess)]
    acts = []
    for ids in batches:
        one, emb = lookup(emb, [ids])
        acts.append(one)
        oracle.lookup(ids)
    grads = [random_grads((3, DIMS[0]), i) for i in range(len(batches))]

    if excess:
        with pytest.raises(dj.errors.InputError, match=f"{MAX_LOOKUPS + 1} lookups"):
            dj.apply_gradients(emb, acts, [[grad] for grad in grads])
        # In parts, then.
        collection.emb = dj.apply_gradients(emb, acts[:100], [[grad] for grad in grads[:100]])
        oracle.apply(np.concatenate(batches[:100]), np.concatenate(grads[:100]))
        emb, acts, batches, grads = collection.emb, acts[100:], batches[100:], grads[100:]
    collection.emb = dj.apply_gradients(emb, acts, [[grad] for grad in grads])

    oracle.apply(np.concatenate(batches), np.concatenate(grads))
    known = np.arange(-2, 60)
    got = dj.get(collection.emb, "t0", known)
    np.testing.assert_array_equal(got.found, oracle.contains(known))
    assert_close(got.rows, oracle.values(known))


@pytest.mark.parametrize("num_tables", [200, MAX_TABLES])
def test_hundreds_of_tables_train_at_once_and_in_parts(num_tables, closing):
    collection = Collection(num_tables, num_tables, closing)

    acts, _ = dj.lookup(collection.emb, collection.ids(9), train=False)
    assert len(acts.rows) == num_tables
    collection.train(0)
    collection.train(1, among=range(100))
    collection.train(2, among=range(100, num_tables))

    collection.check()


@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_bags_of_hundreds_of_features_are_pooled_and_trained_as_one(combiner, closing):
    table = dj.TableConfig("t", 4, optimizer=dj.optimizers.sgd(1.0))
    many = closing(dj.create([dj.FeatureConfig(table, combiner)] * 300))
    one = closing(dj.create([dj.FeatureConfig(table, combiner)]))
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 9, 300)
    ids = [rng.integers(0, 99, (n, 3)).astype(np.int32) for n in sizes]
    lengths = [rng.integers(0, 4, n) for n in sizes]
    grads = [random_grads((n, 4), f) for f, n in enumerate(sizes)]

    acts, many = dj.lookup(many, list(map(dj.Padded, ids, lengths)))
    many = dj.apply_gradients(many, acts, grads)
    together = dj.Padded(np.concatenate(ids), np.concatenate(lengths))
    expected, one = dj.lookup(one, [together])
    one = dj.apply_gradients(one, expected, [np.concatenate(grads)])

    np.testing.assert_array_equal(np.concatenate(acts.rows), expected.rows[0])
    assert_close(dj.get(many, "t", np.arange(99)).rows, dj.get(one, "t", np.arange(99)).rows)


def test_hundreds_of_tables_are_looked_up_at_once(closing):
    collection = Collection(MAX_TABLES, MAX_TABLES, closing)
    ids = collection.ids(0)

    acts, collection.emb = dj.lookup(collection.emb, ids)

    for t, oracle in enumerate(collection.oracles):
        assert_close(acts.rows[t], oracle.lookup(ids[t]), what=f"t{t}")
    collection.check()


def test_one_table_more_is_refused_with_the_number(closing):
    collection = Collection(MAX_TABLES + 1, MAX_TABLES + 1, closing)

    with pytest.raises(dj.errors.InputError, match=f"{MAX_TABLES + 1} tables.*{MAX_TABLES}"):
        dj.lookup(collection.emb, collection.ids(0))

    some = collection.ids(0, among=range(5))
    _, emb = dj.lookup(collection.emb, some)
    assert dj.stats(emb)["t4"].rows == np.unique(some[4]).size
    assert dj.stats(emb)["t5"].rows == 0
