"""Any sequence of verbs on a bounded table forgets exactly the keys that the oracle predicts."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

import dynemb_jax as dj
from tests.bounded import ON_FULL, POLICIES, BoundedTwin, paths
from tests.plugins import ADMISSIONS
from tests.twin import SAME_LOW_HALF, SPECIAL_KEYS

# Keys that share their home in tables of up to 8 buckets: they overflow into others.
COLLIDING = [
    k for k, (home,) in zip(range(2000), paths(range(2000), 8, 1), strict=True) if not home
]
POOL = [*SPECIAL_KEYS, *SAME_LOW_HALF, *COLLIDING[:60], *range(3000, 3040)]
BATCH = 8
batches = st.lists(st.sampled_from(POOL), min_size=BATCH, max_size=BATCH)
some_keys = st.lists(st.sampled_from(POOL), min_size=3, max_size=3)
score_lists = st.lists(st.sampled_from([0, 1, 2, 3, 7, 2**32 - 1]), min_size=BATCH, max_size=BATCH)
seeds = st.integers(0, 2**32 - 1)


class BoundedMachine(RuleBasedStateMachine):
    """Holds a twin and the lookups whose updates are to come."""

    policies, modes, admission, ttl = POLICIES, ON_FULL, "everyone", None

    @initialize(data=st.data(), max_rows=st.sampled_from([5, 12, 40, 90]), k=st.integers(1, 4))
    def make(self, data, max_rows, k):
        policy = data.draw(st.sampled_from(self.policies))
        on_full = data.draw(st.sampled_from(self.modes))
        self.twin = BoundedTwin(
            policy,
            max_rows,
            on_full=on_full,
            outstanding=k,
            admission=self.admission,
            ttl=self.ttl,
        )
        self.pending = []

    def look(self, ids, scores):
        looked = self.twin.lookup(ids, scores if self.twin.policy == "custom" else None)
        if looked is not None:
            self.pending.append(looked)

    @rule(ids=batches, scores=score_lists)
    def lookup(self, ids, scores):
        self.look(ids, np.array(scores, np.uint32))

    @rule(start=st.integers(0, len(POOL) - 64))
    def flood(self, start):
        self.look(POOL[start : start + 64], np.arange(64, dtype=np.uint32) % 5)

    @precondition(lambda self: self.pending)
    @rule(seed=seeds, several=st.booleans(), keep=st.booleans())
    def update(self, seed, several, keep):
        first = seed % len(self.pending)
        taken = self.pending[first : first + (2 if several else 1)]
        self.twin.update(taken, seed)
        if not keep:
            del self.pending[first : first + len(taken)]

    @rule(ids=some_keys, seed=seeds)
    def assign(self, ids, seed):
        self.twin.assign(ids, seed)

    @rule(ids=some_keys)
    def erase(self, ids):
        self.twin.erase(ids)

    @precondition(lambda self: self.twin.policy != "timestamp")
    @rule(score_below=st.integers(0, 6))
    def erase_if(self, score_below):
        self.twin.erase_if(score_below)

    @rule()
    def shrink(self):
        self.twin.shrink()

    # Easy to draw, and forgets what makes the others interesting.
    @precondition(lambda self: len(self.twin.kept) > 30)
    @rule()
    def clear(self):
        self.twin.clear()

    @rule(ids=some_keys)
    def read(self, ids):
        self.twin.check(ids)

    @invariant()
    def counters_agree(self):
        if hasattr(self, "twin"):
            self.twin.check_counters()

    def teardown(self):
        if hasattr(self, "twin"):
            self.twin.check(POOL)
            dj.close(self.twin.emb)


def machine(name, policy, modes, admission="everyone", ttl=None):
    # Derandomised runs are seeded by the class, so each needs its own.
    fields = {"policies": (policy,), "modes": modes, "admission": admission, "ttl": ttl}
    return type(name, (BoundedMachine,), fields)


@pytest.mark.parametrize("policy", POLICIES)
def test_any_sequence_of_verbs_forgets_what_the_oracle_predicts(policy):
    profile = settings.get_profile("default")
    kind = machine(f"Short{policy}", policy, ON_FULL)
    run_machine(kind, settings=settings(profile, max_examples=5, stateful_step_count=25))


@pytest.mark.parametrize("admission", [name for name in ADMISSIONS if name != "everyone"])
def test_any_sequence_of_verbs_admits_what_the_oracle_predicts(admission):
    profile = settings.get_profile("default")
    kind = machine(f"Short{admission}", "lru", ON_FULL, admission)
    run_machine(kind, settings=settings(profile, max_examples=5, stateful_step_count=25))


@pytest.mark.parametrize("ttl", [1, 3, 17])
def test_any_sequence_of_verbs_outlives_what_the_oracle_predicts(ttl):
    profile = settings.get_profile("default")
    kind = machine(f"Short{ttl}", "lfu", ON_FULL, ttl=ttl)
    run_machine(kind, settings=settings(profile, max_examples=5, stateful_step_count=25))


@pytest.mark.long
@pytest.mark.parametrize("ttl", [1, 3, 17])
@pytest.mark.parametrize("policy", POLICIES)
def test_many_sequences_of_verbs_outlive_what_the_oracle_predicts(policy, ttl):
    profile = settings.get_profile("long")
    kind = machine(
        f"Long{policy}{ttl}", policy, ON_FULL, "second_id" if ttl == 3 else "everyone", ttl
    )
    run_machine(kind, settings=settings(profile, max_examples=10, stateful_step_count=50))


@pytest.mark.long
@pytest.mark.parametrize("admission", [name for name in ADMISSIONS if name != "everyone"])
@pytest.mark.parametrize("policy", POLICIES)
def test_many_sequences_of_verbs_admit_what_the_oracle_predicts(policy, admission):
    profile = settings.get_profile("long")
    kind = machine(f"Long{policy}{admission}", policy, ON_FULL, admission)
    run_machine(kind, settings=settings(profile, max_examples=10, stateful_step_count=50))


@pytest.mark.long
@pytest.mark.parametrize("on_full", ON_FULL)
@pytest.mark.parametrize("policy", POLICIES)
def test_many_sequences_of_verbs_forget_what_the_oracle_predicts(policy, on_full):
    profile = settings.get_profile("long")
    kind = machine(f"Long{policy}{on_full}", policy, (on_full,))
    run_machine(kind, settings=settings(profile, max_examples=15, stateful_step_count=50))
