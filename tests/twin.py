"""A table of the library beside its dictionary: each verb goes to both, the answers must agree."""

import dataclasses

import jax
import numpy as np

import dynemb_jax as dj
from tests.oracle.dict_table import DictTable
from tests.plugins import ALL_OPTIMIZERS, INITIALIZERS

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
# Values that other tables reserve for empty, deleted, locked or padding. -1 is also all ones.
SPECIAL_KEYS = (-1, -2, 0, 1, INT64_MIN, INT64_MAX)
# Keys that differ in their upper half only.
SAME_LOW_HALF = tuple(7 + (i << 32) for i in range(6))
COUNTERS = [
    "lookups",
    "ids",
    "hits",
    "inserted",
    "found",
    "missing",
    "padded",
    "erased",
    "assigned",
    "updates",
    "updated_rows",
]


def u64(keys):
    """Python integers of any sign as uint64, shape kept."""
    keys = np.asarray(keys, object)
    return np.array([int(k) % 2**64 for k in keys.ravel()], np.uint64).reshape(keys.shape)


def keys(values):
    """Python integers of any sign as dj.Keys."""
    return dj.keys(u64(values))


def create(dim=4, *, name="items", combiner=None, seed=0, **config):
    """A collection of one feature: ids go in, and rows come out, without a nest."""
    return dj.create(dj.FeatureConfig(dj.TableConfig(name, dim, **config), combiner), seed=seed)


def random_grads(shape, seed=0):
    """float32 gradients of order one."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def assert_close(actual, expected, *, rtol=1e-5, atol=2e-6, what="rows"):
    """float32 results against float64 expectations, shapes included."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, (what, actual.shape, expected.shape)
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, err_msg=what)


def assert_same_stats(emb, name, oracle):
    """Every counter of a table equals the dictionary's."""
    stats = dj.stats(emb)[name]
    actual = {c: getattr(stats, c) for c in COUNTERS}
    assert actual == {c: oracle.counters[c] for c in COUNTERS}
    assert sum(stats.refused.values()) == oracle.counters["refused"]
    assert stats.rows == len(oracle.rows)


class Twin:
    """One table, one feature without combiner, and the dictionary that it must equal."""

    def __init__(
        self,
        dim=4,
        *,
        optimizer="adagrad",
        initializer="uniform",
        seed=0,
        name="items",
        rtol=1e-5,
        **config,
    ):
        rule, reference = ALL_OPTIMIZERS[optimizer]
        first, first_reference = INITIALIZERS[initializer]
        self.name, self.dim, self.rtol = name, dim, rtol
        self.emb = create(dim, name=name, seed=seed, optimizer=rule, initializer=first, **config)
        self.oracle = DictTable(
            name, dim, optimizer=reference, first_rows=first_reference, seed=seed
        )

    def lookup(self, ids):
        """Looks up for training; returns the activations."""
        acts, self.emb = dj.lookup(self.emb, keys(ids))
        expected = self.oracle.lookup(ids).reshape(*np.shape(ids), self.dim)
        assert_close(acts.rows, expected, rtol=self.rtol)
        return acts

    def find(self, ids):
        """Looks up without training."""
        acts, _ = dj.lookup(self.emb, keys(ids), train=False)
        expected = self.oracle.find(ids).reshape(*np.shape(ids), self.dim)
        assert_close(acts.rows, expected, rtol=self.rtol)

    def update(self, acts, ids, grads, **options):
        """Applies gradients of one batch."""
        self.emb = dj.apply_gradients(self.emb, acts, grads, **options)
        self.oracle.apply(ids, grads, **options)

    def train(self, ids, seed=0, grads=None):
        """One step: look up, then apply random gradients."""
        acts = self.lookup(ids)
        if grads is None:
            grads = random_grads((*np.shape(ids), self.dim), seed)
        self.update(acts, ids, grads)

    def assign(self, ids, rows, state=None):
        """Overwrites rows."""
        self.emb = dj.assign(self.emb, self.name, keys(ids), rows, state)
        self.oracle.assign(ids, rows, state)

    def erase(self, ids):
        """Forgets rows."""
        self.emb = dj.erase(self.emb, self.name, keys(ids))
        self.oracle.erase(ids)

    def check(self, ids=None):
        """Presence, rows and state of the keys (default: all), and every counter."""
        ids = list(self.oracle.rows) if ids is None else ids
        got = dj.get(self.emb, self.name, keys(ids))
        np.testing.assert_array_equal(got.found, self.oracle.contains(ids))
        assert_close(got.rows, self.oracle.values(ids), rtol=self.rtol)
        expected = self.oracle.state(ids)
        assert got.state.keys() == expected.keys()
        for name, value in expected.items():
            assert_close(got.state[name], value, rtol=self.rtol, what=name)
        assert_same_stats(self.emb, self.name, self.oracle)


def token_of(emb):
    """The only leaf of a collection."""
    (token,) = jax.tree.leaves(emb)
    return token


def contents(emb, table="items"):
    """Statistics of a table; on a GPU without room and waiting, which a refused call may change."""
    stats = dataclasses.asdict(dj.stats(emb)[table])
    if emb.group.device.platform == "cpu":
        return stats
    for room in ("waits", "bytes", "row_bytes", "index_bytes", "capacity", "load", "growths"):
        stats.pop(room)
    return stats
