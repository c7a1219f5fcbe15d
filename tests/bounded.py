"""A bounded table of the library beside the oracle that predicts its victims."""

import os
import pathlib

import numpy as np
import pytest

import dynemb_jax as dj
from dynemb_jax import _native
from tests.oracle.bounded_table import (
    SLOTS,
    BoundedTable,
    OracleOutstandingError,
    OracleStaleError,
)
from tests.oracle.dict_table import DictTable, OracleFullError
from tests.plugins import ADMISSIONS, INITIALIZERS, OPTIMIZERS
from tests.twin import assert_close, assert_same_stats, keys, random_grads, u64

POLICIES = ("lru", "timestamp", "lfu", "custom", "decayed")
HALF_LIFE = 3  # of "decayed", which is lfu(decay=)
ON_FULL = ("evict", "drop", "error")
RECORD = 1000


def resident_bytes():
    """Memory of this process that is really there."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def paths(some_keys, num_buckets, length):
    """The first buckets of the keys' paths, as the library's debug view shows them."""
    out = np.zeros((len(some_keys), length), np.int64)
    _native.path_buckets(u64(some_keys), num_buckets, out)
    return out.tolist()


def eviction_of(policy, max_rows=None, *, record=0):
    """A policy by the name that it has in these tests."""
    if policy == "decayed":
        return dj.eviction.lfu(max_rows, record=record, decay=HALF_LIFE)
    return getattr(dj.eviction, policy)(max_rows, record=record)


def bounded(policy="lru", max_rows=None, dim=4, *, record=0, outstanding=4, ttl=None, **config):
    """Embeddings of one table "items" with a policy."""
    eviction = eviction_of(policy, max_rows, record=record)
    if ttl is not None:
        eviction = dj.eviction.ttl(eviction, steps=ttl)
    table = dj.TableConfig("items", dim, eviction=eviction, **config)
    return dj.create(dj.FeatureConfig(table), max_outstanding=outstanding)


class BoundedTwin:
    """One table, one feature, and the oracle; each verb goes to both, the answers must agree."""

    def __init__(
        self,
        policy="lru",
        max_rows=8,
        *,
        dim=3,
        on_full="evict",
        outstanding=4,
        optimizer="adagrad",
        admission="everyone",
        ttl=None,
        **config,
    ):
        admits, admission_oracle = ADMISSIONS[admission]
        rule, reference = OPTIMIZERS[optimizer]
        first, first_rows = INITIALIZERS["uniform"]
        self.dim, self.policy = dim, policy
        self.emb = bounded(
            policy,
            max_rows,
            dim,
            record=RECORD,
            outstanding=outstanding,
            on_full=on_full,
            optimizer=rule,
            initializer=first,
            admission=admits,
            ttl=ttl,
            **config,
        )
        contents = DictTable("items", dim, optimizer=reference, first_rows=first_rows)
        self.oracle = BoundedTable(
            contents,
            paths,
            policy=policy,
            on_full=on_full,
            max_rows=max_rows,
            outstanding=outstanding,
            admission=admission_oracle(),
            ttl=ttl,
            half_life=HALF_LIFE,
        )

    @property
    def stats(self):
        return dj.stats(self.emb)["items"]

    @property
    def num_buckets(self):
        return self.stats.capacity // SLOTS

    @property
    def kept(self):
        return list(self.oracle.places)

    def fails(self, error, oracle_error, call, oracle_call):
        """Both refuse, and the table goes on as it was."""
        with pytest.raises(oracle_error):
            oracle_call()
        with pytest.raises(error):
            call()
        self.emb = dj.resync(self.emb)

    def lookup(self, ids, scores=None):
        """Looks up for training; returns the activations beside what the oracle keeps."""
        given = {"scores": np.asarray(scores)} if scores is not None else {}
        if self.policy == "custom" and scores is None:
            given = {"scores": np.zeros(np.shape(ids), np.uint32)}
        try:
            acts, self.emb = dj.lookup(self.emb, keys(ids), **given)
        except dj.errors.TableFullError:
            with pytest.raises(OracleFullError):
                self.oracle.lookup(ids, self.num_buckets, scores)
            self.emb = dj.resync(self.emb)
            return None
        expected, looked = self.oracle.lookup(ids, self.num_buckets, scores)
        assert_close(acts.rows, expected, rtol=1e-4)
        return acts, looked

    def update(self, pending, seed=0):
        """Applies random gradients of one or several lookups; returns the error's class or None."""
        acts = [acts for acts, _ in pending]
        grads = [random_grads(np.shape(a.rows), seed + i) for i, a in enumerate(acts)]
        expected = None
        try:
            self.oracle.apply([looked for _, looked in pending], grads)
        except OracleStaleError:
            expected = dj.errors.StaleStateError
        except OracleOutstandingError:
            expected = dj.errors.TooManyOutstandingError
        if expected is None:
            self.emb = dj.apply_gradients(self.emb, acts, grads)
            return None
        with pytest.raises(expected):
            dj.apply_gradients(self.emb, acts, grads)
        return expected

    def train(self, ids, scores=None, seed=0):
        """One step."""
        looked = self.lookup(ids, scores)
        if looked is not None:
            self.update([looked], seed)

    def assign(self, ids, seed=0):
        """Writes random rows."""
        rows = random_grads((len(ids), self.dim), seed)
        try:
            self.emb = dj.assign(self.emb, "items", keys(ids), rows)
        except dj.errors.TableFullError:
            with pytest.raises(OracleFullError):
                self.oracle.assign(ids, rows, self.num_buckets)
            self.emb = dj.resync(self.emb)
            return
        self.oracle.assign(ids, rows, self.num_buckets)

    def erase(self, ids):
        """Forgets keys."""
        self.emb = dj.erase(self.emb, "items", keys(ids))
        self.oracle.erase(ids)

    def erase_if(self, score_below):
        """Forgets keys of small scores."""
        self.emb = dj.erase_if(self.emb, "items", score_below=score_below)
        self.oracle.erase_if(score_below)

    def shrink(self):
        """Gives memory back, and says how much."""
        before = self.stats.bytes
        self.emb, freed = dj.shrink(self.emb)
        self.oracle.shrink(self.num_buckets)
        assert freed == {"items": before - self.stats.bytes}
        return freed["items"]

    def clear(self):
        """Forgets all."""
        self.emb = dj.clear(self.emb, "items")
        self.oracle.clear()

    def check_counters(self):
        """Every counter, and that no id is unaccounted for."""
        assert_same_stats(self.emb, "items", self.oracle.contents)
        stats, counters = self.stats, self.oracle.counters
        assert stats.ids == stats.hits + stats.inserted + sum(stats.refused.values())
        reason = "pinned" if self.oracle.on_full == "evict" else "budget"
        assert stats.refused["admission"] == counters["refused_admission"]
        assert stats.refused[reason] == counters["refused"] - counters["refused_admission"]
        assert (stats.evicted, stats.expired) == (counters["evicted"], counters["expired"])
        assert stats.assign_refused == counters["assign_refused"]

    def check(self, others=()):
        """Rows and state of all keys and of others; who was evicted and, but for times, at what."""
        self.check_counters()
        ids = [*self.kept, *others]
        if ids:
            got = dj.get(self.emb, "items", keys(ids))
            contents = self.oracle.contents
            np.testing.assert_array_equal(got.found, contents.contains(ids))
            assert_close(got.rows, contents.values(ids), rtol=1e-4)
            for name, value in contents.state(ids).items():
                assert_close(got.state[name], value, rtol=1e-4, what=name)
        drained = dj.drain_evicted(self.emb, "items")
        expected = self.oracle.evicted[:RECORD]
        assert drained.keys.tolist() == [key for key, _ in expected]
        if self.policy != "timestamp":
            assert drained.scores.tolist() == [score for _, score in expected]
        assert drained.lost == len(self.oracle.evicted) - len(expected)
        self.oracle.evicted = []
