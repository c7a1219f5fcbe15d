"""Compiled ahead of time: the executable is the program, also without a table in sight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.transform.steps import BATCHES, check_steps, train_step
from tests.twin import Twin, assert_close, keys

SHAPES = (keys(BATCHES[0]), jax.ShapeDtypeStruct((4, 4), jnp.float32))


def test_compiled_steps_equal_the_dictionary():
    twin = Twin(optimizer="adam")

    check_steps(jax.jit(train_step).lower(twin.emb, *SHAPES).compile(), twin)


def test_tracing_lowering_and_compiling_touch_nothing():
    twin = Twin()

    jax.jit(train_step).lower(twin.emb, *SHAPES).compile()
    jax.make_jaxpr(train_step)(twin.emb, keys(BATCHES[0]), np.ones((4, 4), np.float32))
    jax.eval_shape(train_step, twin.emb, *SHAPES)

    twin.check([1])


def test_shapes_are_known_without_running():
    twin = Twin()

    rows, emb = jax.eval_shape(train_step, twin.emb, *SHAPES)

    assert (rows.shape, rows.dtype) == ((4, 4), jnp.float32)
    assert jax.tree.structure(emb) == jax.tree.structure(twin.emb)


def test_a_compiled_program_survives_growth():
    twin = Twin(dim=1)
    shape = jax.ShapeDtypeStruct((1000,), jnp.int32)
    lookup = jax.jit(lambda e, i: dj.lookup(e, i)[1]).lower(twin.emb, shape).compile()

    for i in range(6):
        ids = np.arange(i * 1000, i * 1000 + 1000, dtype=np.int32)
        twin.emb = lookup(twin.emb, ids)
        twin.oracle.lookup(ids)

    assert dj.stats(twin.emb)["items"].growths >= 1
    twin.check()


def test_a_compiled_program_of_a_closed_table_is_an_error():
    twin = Twin()
    compiled = jax.jit(train_step).lower(twin.emb, *SHAPES).compile()

    dj.close(twin.emb)

    with pytest.raises(dj.errors.ClosedError), dj.errors.typed():
        jax.block_until_ready(compiled(twin.emb, keys(BATCHES[0]), np.ones((4, 4), np.float32)))


def test_clearing_caches_loses_no_rows():
    twin = Twin()
    twin.train([1, 2])

    jax.clear_caches()

    twin.train([2, 3])
    twin.check()
    acts, _ = jax.jit(lambda e: dj.lookup(e, np.array([1]), train=False))(twin.emb)
    assert_close(acts.rows, twin.oracle.values([1]))
