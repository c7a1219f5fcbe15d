"""Ragged batches under the transformations: one native call, each bag for itself."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.oracle import ragged
from tests.oracle.dict_table import DictTable
from tests.oracle.pooling import COMBINERS
from tests.plugins import INITIALIZERS, OPTIMIZERS
from tests.twin import assert_close, assert_same_stats, create, keys, random_grads

# Three batches of one capacity: other lengths, other ends, and one of empty bags only.
IDS = np.array([[1, 2, 2, -1, 9, 9], [2, 3, 2**40, 3, 7, 1], [8, 8, 8, 8, 8, 8]])
SPLITS = np.array([[0, 1, 4, 4], [0, 0, 5, 6], [0, 0, 0, 0]], np.int32)
WEIGHTS = random_grads(IDS.shape, 2)
CT = random_grads((3, 3, 4), 3)
USED = np.arange(6) < SPLITS[:, -1:]


class Dictionary:
    """The oracle, fed with the ids that are meant, and pooled bag by bag."""

    def __init__(self, combiner="sum", optimizer="adam_row"):
        rule, reference = OPTIMIZERS[optimizer]
        first, first_reference = INITIALIZERS["uniform"]
        self.combiner = combiner
        self.emb = create(4, combiner=combiner, optimizer=rule, initializer=first)
        self.table = DictTable("items", 4, optimizer=reference, first_rows=first_reference, seed=0)

    def lookup(self, batch, weights=None):
        """Returns the pooled rows of one batch [B, dim]."""
        values = self.table.lookup(IDS[batch], USED[batch]).reshape(6, 4)
        return ragged.pool(self.combiner, values, SPLITS[batch], weights)

    def apply(self, batches):
        """One update over the batches, with gradients CT."""
        ids, grads = [], []
        for batch in batches:
            values = np.zeros((6, 4))  # d rows does not depend on them
            per_id, _ = ragged.pool_vjp(self.combiner, values, CT[batch], SPLITS[batch])
            ids.extend(IDS[batch][USED[batch]])
            grads.extend(per_id[USED[batch]])
        self.table.apply(np.array(ids, object), np.reshape(grads, (-1, 4)))

    def check(self, emb):
        known = list(self.table.rows)
        assert_close(dj.get(emb, "items", keys(known)).rows, self.table.values(known))
        assert_same_stats(emb, "items", self.table)


def batch_of(index, weights=None):
    return dj.Ragged(keys(IDS[index]), SPLITS[index], weights)


def stacked():
    return dj.Ragged(keys(IDS), SPLITS)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_jitted_steps_equal_the_dictionary(combiner):
    both = Dictionary(combiner)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(emb, ids, ct):
        acts, emb = dj.lookup(emb, ids)
        return dj.apply_gradients(emb, acts, ct), acts.rows

    for index in (0, 1, 2, 0):
        both.emb, rows = step(both.emb, batch_of(index), CT[index])
        assert_close(rows, both.lookup(index))
        both.apply([index])
    both.check(both.emb)


def test_scanned_steps_equal_the_dictionary():
    both = Dictionary("mean")

    def body(emb, batch):
        acts, emb = dj.lookup(emb, batch[0])
        return dj.apply_gradients(emb, acts, batch[1]), acts.rows

    emb, rows = jax.jit(lambda e, b: jax.lax.scan(body, e, b))(both.emb, (stacked(), CT))

    for index in range(3):
        assert_close(rows[index], both.lookup(index))
        both.apply([index])
    both.check(emb)


def test_stacked_activations_of_a_scan_are_one_update():
    both = Dictionary("mean")

    def body(emb, ids):
        acts, emb = dj.lookup(emb, ids)
        return emb, acts

    @jax.jit
    def step(emb, ids):
        emb, acts = jax.lax.scan(body, emb, ids)
        return dj.apply_gradients(emb, acts, CT)

    emb = step(both.emb, stacked())

    for index in range(3):
        both.lookup(index)
    both.apply(range(3))
    both.check(emb)


def test_a_list_of_micro_batches_is_one_update():
    both = Dictionary("sqrtn")

    first, emb = dj.lookup(both.emb, batch_of(0))
    second, emb = dj.lookup(emb, batch_of(1))
    emb = dj.apply_gradients(emb, [first, second], [CT[0], CT[1]])

    for index in range(2):
        both.lookup(index)
    both.apply(range(2))
    both.check(emb)


@pytest.mark.parametrize("taken", [True, False])
def test_only_the_branch_taken_looks_up(taken):
    both = Dictionary("sum")

    def step(emb):
        acts, emb = dj.lookup(emb, batch_of(0))
        return dj.apply_gradients(emb, acts, CT[0])

    emb = jax.jit(lambda c, e: jax.lax.cond(c, step, lambda e: e, e))(taken, both.emb)

    if taken:
        both.lookup(0)
        both.apply([0])
    both.check(emb)


@pytest.mark.parametrize("policy", [None, "remat_policy"])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_rematerialised_lookups_keep_rows_and_the_gradients_of_weights(combiner, policy):
    both = Dictionary(combiner)
    options = {} if policy is None else {"policy": getattr(dj, policy)}

    @functools.partial(jax.checkpoint, **options)
    def loss(weights, taps, emb):
        acts, emb = dj.lookup(emb, batch_of(0, weights), taps=taps)
        return jnp.sum(jnp.sin(acts.rows)), (acts, emb)

    taps = dj.taps(both.emb, batch_of(0))
    grad = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))
    (d_weights, d_rows), (acts, emb) = grad(jnp.asarray(WEIGHTS[0]), taps, both.emb)

    rows = both.lookup(0, WEIGHTS[0])
    assert_close(acts.rows, rows)
    assert_close(d_rows, np.cos(rows))
    known = np.zeros((6, 4))
    known[USED[0]] = both.table.values(IDS[0][USED[0]])
    _, expected = ragged.pool_vjp(combiner, known, np.cos(rows), SPLITS[0], WEIGHTS[0])
    assert_close(d_weights, expected, what="weights")
    both.check(emb)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("combiner", [None, *COMBINERS])
def test_mapped_batches_fold_into_one_lookup_with_splits_of_their_own(combiner, jit):
    both = Dictionary(combiner)

    def run(emb, ids):
        acts, emb = jax.vmap(lambda i: dj.lookup(emb, i), out_axes=(0, None))(ids)
        return acts.rows, emb

    rows, emb = (jax.jit(run) if jit else run)(both.emb, stacked())

    values = both.table.lookup(IDS, USED).reshape(3, 6, 4) * USED[..., None]
    if combiner is not None:
        values = [ragged.pool(combiner, v, s) for v, s in zip(values, SPLITS, strict=True)]
    assert_close(rows, np.stack(values))
    both.check(emb)


def test_mapped_splits_of_shared_ids_are_folded():
    emb = create(4, combiner="sum")
    splits = np.array([[0, 2, 4], [0, 1, 1]], np.int32)
    ids = np.array([1, 2, 3, 4], np.int32)

    rows = jax.vmap(lambda s: dj.lookup(emb, dj.Ragged(ids, s))[0].rows)(splits)

    values = dj.get(emb, "items", ids).rows
    assert_close(rows, np.stack([ragged.pool("sum", values, s) for s in splits]))


@pytest.mark.parametrize("combiner", COMBINERS)
def test_per_example_gradients_of_weights_are_each_batch_s_own(combiner):
    both = Dictionary(combiner)
    for index in range(2):
        _, both.emb = dj.lookup(both.emb, batch_of(index))
        both.lookup(index)

    def loss(weights, ids, ct):
        acts, _ = dj.lookup(both.emb, dj.Ragged(ids.ids, ids.row_splits, weights), train=False)
        return jnp.sum(acts.rows * ct)

    d_weights = jax.jit(jax.vmap(jax.grad(loss)))(jnp.asarray(WEIGHTS), stacked(), CT)

    for index in range(3):
        known = np.zeros((6, 4))
        known[USED[index]] = both.table.values(IDS[index][USED[index]]).reshape(-1, 4)
        _, expected = ragged.pool_vjp(combiner, known, CT[index], SPLITS[index], WEIGHTS[index])
        assert_close(d_weights[index], expected, rtol=1e-4, atol=1e-5)


def test_gradients_of_a_mapped_lookup_apply_as_one_step():
    both = Dictionary("mean")

    @jax.jit
    def step(emb, ids):
        acts, emb = jax.vmap(lambda i: dj.lookup(emb, i), out_axes=(0, None))(ids)
        return dj.apply_gradients(emb, acts, CT)

    emb = step(both.emb, stacked())

    both.table.lookup(IDS, USED)
    both.apply(range(3))
    both.check(emb)
