"""Any sequence of verbs on one table equals the same sequence on the dictionary."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

import dynemb_jax as dj
from tests.plugins import OPTIMIZERS
from tests.twin import (
    INT64_MAX,
    SAME_LOW_HALF,
    SPECIAL_KEYS,
    Twin,
    assert_same_stats,
    keys,
    random_grads,
)

# Keys that tables like to confuse: reserved elsewhere, equal in a half, close to powers of two.
POOL = sorted(
    {
        *SPECIAL_KEYS,
        *SAME_LOW_HALF,
        *(0xFFFFFFFF + (i << 32) for i in (0, 1, 0x7FFFFFFF)),
        *(2**40 + i for i in range(4)),
        *(2**31 - 1, 2**31, -(2**31), 2**32, -(2**32), INT64_MAX - 1),
        *range(2, 12),
    }
)
DIM = 3
# Few batch sizes: every size of every table compiles its own program.
batches = st.lists(st.sampled_from(POOL), min_size=8, max_size=8)
some_keys = st.lists(st.sampled_from(POOL), min_size=3, max_size=3, unique=True)
seeds = st.integers(0, 2**32 - 1)


class TableMachine(RuleBasedStateMachine):
    """Holds a twin, the activations that are still to be applied, and one outdated state."""

    @initialize(optimizer=st.sampled_from(sorted(OPTIMIZERS)), seed=seeds)
    def make(self, optimizer, seed):
        self.optimizer, self.seed = optimizer, seed
        self.twin = Twin(DIM, optimizer=optimizer, seed=seed, rtol=1e-4)
        self.pending, self.outdated, self.fresh = [], None, 10**6

    def remember(self):
        self.outdated = self.twin.emb

    @rule(ids=batches)
    def lookup(self, ids):
        self.remember()
        self.pending.append((ids, self.twin.lookup(ids)))

    @rule(ids=batches)
    def find(self, ids):
        self.twin.find(ids)

    @precondition(lambda self: self.pending)
    @rule(seed=seeds, several=st.booleans())
    def update(self, seed, several):
        self.remember()
        if several:
            taken, self.pending = self.pending[:2], self.pending[2:]
        else:
            taken = [self.pending.pop(seed % len(self.pending))]
        grads = [random_grads((8, DIM), seed + i) for i in range(len(taken))]
        twin = self.twin
        if len(taken) == 1:
            twin.update(taken[0][1], taken[0][0], grads[0])
            return
        twin.emb = dj.apply_gradients(twin.emb, [acts for _, acts in taken], grads)
        twin.oracle.apply([ids for ids, _ in taken], np.stack(grads))

    @rule(ids=some_keys, seed=seeds)
    def assign(self, ids, seed):
        self.remember()
        self.twin.assign(ids, random_grads((3, DIM), seed))

    @rule(origin=some_keys, destination=some_keys)
    def copy_rows_with_their_state(self, origin, destination):
        self.remember()
        got = dj.get(self.twin.emb, "items", keys(origin))
        self.twin.assign(destination, got.rows, got.state)

    @rule(ids=some_keys)
    def erase(self, ids):
        known = self.twin.oracle.contains(ids).any()
        self.remember()
        self.twin.erase(ids)
        if self.pending and known:
            grads = np.zeros((8, DIM), np.float32)
            with pytest.raises(dj.errors.StaleStateError):
                dj.apply_gradients(self.twin.emb, self.pending[0][1], grads)
        self.pending = []

    @rule()
    def grow(self):
        self.remember()
        self.twin.lookup(range(self.fresh, self.fresh + 256))
        self.fresh += 256

    @precondition(lambda self: self.outdated is not None)
    @rule(resync=st.booleans())
    def use_outdated_state(self, resync):
        # New keys, so this is no repetition of the lookup that outdated the state.
        ids = [self.fresh + 10**9 + i for i in range(8)]
        with pytest.raises(dj.errors.StaleStateError):
            dj.lookup(self.outdated, keys(ids))
        with pytest.raises(dj.errors.StaleStateError):
            dj.erase(self.outdated, "items", keys(ids[:3]))
        if resync:
            self.twin.emb = dj.resync(self.outdated)
            self.outdated = None

    # Only tables that have seen something: closing is easy to draw and forgets the history.
    @precondition(lambda self: self.twin.oracle.counters["updates"] >= 3)
    @rule()
    def close_and_make_again(self):
        old = self.twin.emb
        dj.close(old)
        with pytest.raises(dj.errors.ClosedError):
            dj.stats(old)
        self.make(self.optimizer, self.seed)

    @rule(ids=some_keys)
    def read(self, ids):
        self.twin.check(ids)

    @invariant()
    def counters_agree(self):
        if hasattr(self, "twin"):
            assert_same_stats(self.twin.emb, "items", self.twin.oracle)

    def teardown(self):
        if hasattr(self, "twin"):
            self.twin.check([*POOL, *self.twin.oracle.rows])
            dj.close(self.twin.emb)


def test_any_sequence_of_verbs_equals_the_dictionary():
    profile = settings.get_profile("default")
    run_machine(TableMachine, settings=settings(profile, max_examples=6, stateful_step_count=25))


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_many_sequences_of_verbs_equal_the_dictionary(part):
    """Four parts of 40 sequences of 50 steps, for the sake of parallel runs."""
    profile = settings.get_profile("long")

    # Derandomised runs are seeded by the class, so each part needs its own.
    machine = type(f"TableMachine{part}", (TableMachine,), {})
    run_machine(machine, settings=settings(profile, max_examples=25, stateful_step_count=50))
