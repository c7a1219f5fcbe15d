"""Under jit: the same results, one native call per verb and step, one trace."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.plugins import OPTIMIZERS
from tests.transform.steps import BATCHES, check_steps, train_step
from tests.twin import Twin, assert_close, create, keys, random_grads


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_jitted_steps_equal_the_dictionary(optimizer):
    check_steps(jax.jit(train_step), Twin(optimizer=optimizer))


def test_lookup_and_update_may_be_jitted_apart():
    lookup, update = jax.jit(dj.lookup), jax.jit(dj.apply_gradients)

    def step(emb, ids, grads):
        acts, emb = lookup(emb, ids)
        return acts.rows, update(emb, acts, grads)

    check_steps(step, Twin())


def test_one_jitted_lookup_feeds_an_eager_update_and_the_reverse():
    def outside(emb, ids, grads):
        acts, emb = jax.jit(dj.lookup)(emb, ids)
        return acts.rows, dj.apply_gradients(emb, acts, grads)

    def inside(emb, ids, grads):
        acts, emb = dj.lookup(emb, ids)
        return acts.rows, jax.jit(dj.apply_gradients)(emb, acts, grads)

    check_steps(outside, Twin())
    check_steps(inside, Twin())


def test_find_under_jit_changes_nothing():
    twin = Twin()
    twin.train([1, 2])

    acts, emb = jax.jit(lambda e, i: dj.lookup(e, i, train=False))(twin.emb, keys([1, 5]))
    expected = twin.oracle.find([1, 5])
    twin.emb = emb

    assert_close(acts.rows, expected)
    twin.check([1, 2, 5])


def test_a_loop_over_batches_traces_once():
    # A function of its own: jitted functions share the traces of the function they wrap.
    step = jax.jit(lambda emb, ids, grads: train_step(emb, ids, grads))

    check_steps(step, Twin())

    assert step._cache_size() == 1


def test_two_lookups_and_two_updates_in_one_program_are_four_calls():
    twin = Twin()
    grads = random_grads((4, 4))

    @jax.jit
    def program(emb, ids):
        emb = train_step(emb, ids, grads)[1]
        return train_step(emb, ids, grads)[1]

    twin.emb = program(twin.emb, keys(BATCHES[0]))
    for _ in range(2):
        twin.oracle.lookup(BATCHES[0])
        twin.oracle.apply(BATCHES[0], grads)

    twin.check()


def test_a_lookup_whose_rows_are_unused_still_inserts():
    emb = jax.jit(lambda emb: dj.lookup(emb, np.array([5]))[1])(create())

    assert dj.contains(emb, "items", np.array([5])).all()


def test_an_update_whose_state_is_unused_still_runs():
    twin = Twin()
    acts = twin.lookup([1])
    grads = random_grads((1, 4))

    @jax.jit
    def drop(emb, acts):
        dj.apply_gradients(emb, acts, grads)
        return jnp.zeros(())

    jax.block_until_ready(drop(twin.emb, acts))
    twin.oracle.apply([1], grads)
    twin.emb = dj.resync(twin.emb)

    twin.check()


def test_a_traced_learning_rate_compiles_once():
    emb = create(1, optimizer=dj.optimizers.sgd(7.0))
    acts, emb = dj.lookup(emb, np.array([1]))
    grads = np.ones((1, 1), np.float32)
    start = dj.get(emb, "items", np.array([1])).rows

    @jax.jit
    def update(emb, rate):
        return dj.apply_gradients(emb, acts, grads, learning_rate=rate)

    for rate in (0.5, 0.25):
        emb = update(emb, rate)

    assert_close(dj.get(emb, "items", np.array([1])).rows, start - 0.75)
    assert update._cache_size() == 1


def test_ids_as_keyword_and_static_mode_work():
    lookup = jax.jit(dj.lookup, static_argnames="train")

    acts, emb = lookup(create(), ids=np.array([3], np.int32), train=True)
    found, _ = lookup(emb, ids=np.array([3], np.int32), train=False)

    np.testing.assert_array_equal(acts.rows, found.rows)


def test_state_is_an_ordinary_pytree():
    twin = Twin()
    leaves, treedef = jax.tree.flatten(twin.emb)

    twin.emb = jax.tree.unflatten(treedef, leaves)

    assert hash(treedef) == hash(jax.tree.structure(twin.emb))
    twin.train([1])
    twin.check()


def test_two_collections_in_one_program_keep_apart():
    left, right = Twin(), Twin(seed=1)

    @jax.jit
    def both(a, b, ids, grads):
        return train_step(a, ids, grads)[1], train_step(b, ids, -grads)[1]

    grads = random_grads((4, 4))
    for ids in BATCHES:
        left.emb, right.emb = both(left.emb, right.emb, keys(ids), grads)
        for twin, sign in ((left, 1), (right, -1)):
            twin.oracle.lookup(ids)
            twin.oracle.apply(ids, sign * grads)

    left.check()
    right.check()
