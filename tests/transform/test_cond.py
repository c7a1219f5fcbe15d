"""Under cond and switch: the branch that is not taken does not touch the table."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.twin import Twin, random_grads


@jax.jit
def guarded_step(emb, ids, grads):
    """Skips the update, not the lookup, when a gradient is not finite."""
    acts, emb = dj.lookup(emb, ids)
    finite = jnp.all(jnp.isfinite(grads))
    return jax.lax.cond(finite, lambda e: dj.apply_gradients(e, acts, grads), lambda e: e, emb)


def test_a_skipped_update_leaves_rows_state_and_step_alone():
    twin = Twin(optimizer="adam")
    ids = np.array([1, 2, 2], np.int32)

    for step in range(4):
        grads = random_grads((3, 4), step)
        if step % 2:
            grads[1, 1] = np.nan
        twin.emb = guarded_step(twin.emb, ids, grads)
        twin.oracle.lookup(ids)
        if not step % 2:
            twin.oracle.apply(ids, grads)

    twin.check()


@pytest.mark.parametrize("taken", [True, False])
def test_a_lookup_runs_only_in_the_branch_taken(taken):
    twin = Twin()

    def look(emb):
        acts, emb = dj.lookup(emb, np.array([5]))
        return acts.rows, emb

    @jax.jit
    def maybe(emb, go):
        return jax.lax.cond(go, look, lambda e: (jnp.zeros((1, 4)), e), emb)

    _, twin.emb = maybe(twin.emb, taken)
    if taken:
        twin.oracle.lookup([5])

    twin.check([5])


def test_each_branch_of_a_switch_is_its_own_lookup():
    twin = Twin()
    branches = [lambda e, k=k: dj.lookup(e, np.array([k, k]))[1] for k in (10, 11, 12)]

    @jax.jit
    def pick(emb, i):
        return jax.lax.switch(i, branches, emb)

    for i in (2, 0, 2):
        twin.emb = pick(twin.emb, i)
        twin.oracle.lookup([10 + i, 10 + i])

    twin.check([10, 11, 12])


def test_find_and_train_may_be_chosen_at_run_time():
    twin = Twin()

    @jax.jit
    def step(emb, train):
        def run(mode):
            def branch(e):
                acts, e = dj.lookup(e, np.array([1, 2]), train=mode)
                return acts.rows, e

            return branch

        return jax.lax.cond(train, run(True), run(False), emb)

    rows, twin.emb = step(twin.emb, False)
    assert not np.asarray(rows).any()
    twin.oracle.find([1, 2])
    rows, twin.emb = step(twin.emb, True)
    np.testing.assert_array_equal(rows, twin.oracle.lookup([1, 2]))

    twin.check([1, 2])
