"""With donated state: the same results, and the given-away state is really gone."""

import functools

import jax
import numpy as np
import pytest

import dynemb_jax as dj
from tests.transform.steps import (
    BATCHES,
    batch_grads,
    batch_keys,
    check_steps,
    oracle_steps,
    train_step,
)
from tests.twin import Twin, create, keys, token_of

donating = functools.partial(jax.jit, donate_argnames="emb")


@pytest.mark.parametrize("optimizer", ["sgd", "adam_row"])
def test_donated_steps_equal_the_dictionary(optimizer):
    check_steps(donating(train_step), Twin(optimizer=optimizer))


def test_the_donated_token_is_gone():
    emb = create()

    donating(train_step)(emb, keys(BATCHES[0]), batch_grads()[0])

    assert token_of(emb).is_deleted()


def test_using_donated_state_is_a_stale_state_error():
    emb = create()
    donating(train_step)(emb, keys(BATCHES[0]), batch_grads()[0])

    with pytest.raises(dj.errors.StaleStateError):
        dj.lookup(emb, np.array([1]))


def test_resync_revives_donated_state():
    twin = Twin()
    check_steps(donating(train_step), twin)
    donating(lambda emb: dj.lookup(emb, np.array([50]))[1])(twin.emb)
    twin.oracle.lookup([50])

    twin.emb = dj.resync(twin.emb)

    twin.train([50])
    twin.check()


def test_a_donated_scan_equals_the_dictionary():
    twin = Twin()

    def body(emb, batch):
        rows, emb = train_step(emb, *batch)
        return emb, rows

    run = donating(lambda emb, ids, grads: jax.lax.scan(body, emb, (ids, grads)))
    twin.emb, _ = run(twin.emb, batch_keys(), batch_grads())
    oracle_steps(twin.oracle)

    twin.check()


def test_donated_activations_are_consumed_by_the_update():
    update = jax.jit(dj.apply_gradients, donate_argnums=(0,))

    def step(emb, ids, grads):
        acts, emb = dj.lookup(emb, ids)
        return acts.rows, update(emb, acts, grads)

    check_steps(step, Twin())
