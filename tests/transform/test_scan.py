"""Inside loops: the state in the carry orders the steps, each runs once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.transform.steps import BATCHES, batch_grads, batch_keys, oracle_steps, train_step
from tests.twin import Twin, assert_close, random_grads


def body(emb, batch):
    rows, emb = train_step(emb, *batch)
    return emb, rows


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("unroll", [1, 3])
def test_scanned_steps_equal_the_dictionary(jit, unroll):
    twin = Twin(optimizer="adam_row")

    def run(emb, ids, grads):
        return jax.lax.scan(body, emb, (ids, grads), unroll=unroll)

    run = jax.jit(run) if jit else run
    twin.emb, rows = run(twin.emb, batch_keys(), batch_grads())

    assert_close(rows, oracle_steps(twin.oracle))
    twin.check()


def test_a_scanned_find_follows_the_updates_before_it():
    twin = Twin()

    def find_after(emb, batch):
        emb, _ = body(emb, batch)
        acts, emb = dj.lookup(emb, batch[0], train=False)
        return emb, acts.rows

    twin.emb, rows = jax.jit(lambda e, b: jax.lax.scan(find_after, e, b))(
        twin.emb, (batch_keys(), batch_grads())
    )

    for ids, grads, found in zip(BATCHES, batch_grads(), rows, strict=True):
        twin.oracle.lookup(ids)
        twin.oracle.apply(ids, grads)
        assert_close(found, twin.oracle.find(ids))
    twin.check()


def test_a_find_that_does_not_depend_on_the_loop_sees_the_table_of_its_turn():
    twin = Twin(optimizer="sgd")
    twin.train([1])

    def turn(emb, _):
        acts, emb = dj.lookup(emb, np.array([1]), train=False)
        trained, emb = dj.lookup(emb, np.array([1]))
        return dj.apply_gradients(emb, trained, jnp.ones((1, 4))), acts.rows

    twin.emb, rows = jax.jit(lambda e: jax.lax.scan(turn, e, None, length=3))(twin.emb)

    expected = []
    for _ in range(3):
        expected.append(twin.oracle.find([1]))
        twin.oracle.lookup([1])
        twin.oracle.apply([1], np.ones((1, 4)))
    assert_close(rows, np.stack(expected))
    twin.check()


def test_a_fori_loop_runs_each_turn_once():
    twin = Twin()
    ids, grads = jax.tree.map(jnp.asarray, (batch_keys(), batch_grads()))

    @jax.jit
    def run(emb):
        def turn(i, emb):
            picked = jax.tree.map(lambda x: x[i], ids)
            return train_step(emb, picked, grads[i])[1]

        return jax.lax.fori_loop(0, len(BATCHES), turn, emb)

    twin.emb = run(twin.emb)
    oracle_steps(twin.oracle)

    twin.check()


def test_a_while_loop_runs_as_often_as_its_condition_says():
    twin = Twin()
    grads = random_grads((2, 4))

    @jax.jit
    def run(emb, turns):
        def turn(carry):
            i, emb = carry
            return i + 1, train_step(emb, jnp.stack([i, i + 1]), grads)[1]

        return jax.lax.while_loop(lambda c: c[0] < turns, turn, (0, emb))[1]

    twin.emb = run(twin.emb, 5)
    for i in range(5):
        twin.oracle.lookup([i, i + 1])
        twin.oracle.apply([i, i + 1], grads)

    twin.check()


def test_activations_stacked_by_a_scan_make_one_exact_update():
    twin = Twin(optimizer="adam_row")

    @jax.jit
    def run(emb, ids, grads):
        def look(emb, ids):
            acts, emb = dj.lookup(emb, ids)
            return emb, acts

        emb, acts = jax.lax.scan(look, emb, ids)
        return dj.apply_gradients(emb, acts, grads)

    twin.emb = run(twin.emb, batch_keys(), batch_grads())
    for ids in BATCHES:
        twin.oracle.lookup(ids)
    twin.oracle.apply(BATCHES, batch_grads())

    twin.check()


def test_lookups_of_one_program_apply_as_lists():
    twin = Twin(optimizer="adam_row")

    @jax.jit
    def run(emb, ids, grads):
        acts = []
        for i in range(len(BATCHES)):
            a, emb = dj.lookup(emb, jax.tree.map(lambda x, i=i: x[i], ids))
            acts.append(a)
        return dj.apply_gradients(emb, acts, list(grads))

    twin.emb = run(twin.emb, batch_keys(), batch_grads())
    for ids in BATCHES:
        twin.oracle.lookup(ids)
    twin.oracle.apply(BATCHES, batch_grads())

    twin.check()
