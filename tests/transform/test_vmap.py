"""Under vmap: the mapped axis folds into the ids, one native call; state is never mapped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.oracle.pooling import COMBINERS, pool
from tests.twin import Twin, assert_close, create, keys, random_grads

IDS = [[1, 2, 2, -1], [2, 3, 2**40, 3], [7, 7, 7, 1]]


def mapped_lookup(emb, ids, in_axes=0, **options):
    lookup = jax.vmap(
        lambda i: dj.lookup(emb, i, **options), in_axes=(in_axes,), out_axes=(0, None)
    )
    return lookup(ids)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_a_mapped_lookup_is_one_lookup_of_all_ids(jit):
    twin = Twin()

    run = jax.jit(mapped_lookup) if jit else mapped_lookup
    acts, twin.emb = run(twin.emb, keys(IDS))

    assert_close(acts.rows, twin.oracle.lookup(IDS).reshape(3, 4, 4))
    twin.check()


def test_a_lookup_mapped_over_another_axis_moves_it_to_the_front():
    twin = Twin()
    ids = np.arange(6, dtype=np.int32).reshape(2, 3)

    acts, twin.emb = mapped_lookup(twin.emb, ids, in_axes=1)

    assert_close(acts.rows, twin.oracle.lookup(ids.T).reshape(3, 2, 4))
    assert dj.stats(twin.emb)["items"].lookups == 1


def test_a_lookup_mapped_twice_is_one_lookup():
    twin = Twin()
    ids = np.arange(24, dtype=np.int32).reshape(2, 3, 4) % 7

    def inner(row):
        acts, emb = mapped_lookup(twin.emb, row)
        return acts.rows, emb

    rows, twin.emb = jax.vmap(inner, out_axes=(0, None))(ids)

    assert_close(rows, twin.oracle.lookup(ids).reshape(2, 3, 4, 4))
    twin.check()


def test_a_mapped_find_changes_nothing():
    twin = Twin()
    twin.train([1, 2, 3])

    rows = jax.vmap(lambda i: dj.lookup(twin.emb, i, train=False)[0].rows)(keys(IDS))

    assert_close(rows, twin.oracle.find(IDS).reshape(3, 4, 4))
    twin.check()


@pytest.mark.parametrize("combiner", COMBINERS)
def test_mapped_bags_pool_each_for_itself(combiner):
    emb = create(3, combiner=combiner)
    ids = np.array(IDS, np.int64)
    lengths = np.array([4, 0, 2], np.int32)
    weights = random_grads((3, 4))

    def one(i, n, w):
        return dj.lookup(emb, dj.Padded(i, lengths=n, weights=w))

    acts, emb = jax.vmap(one, out_axes=(0, None))(ids.astype(np.int32), lengths, weights)

    values = dj.get(emb, "items", ids.astype(np.int32)).rows
    mask = np.arange(4)[None, :] < lengths[:, None]
    assert_close(acts.rows, pool(combiner, values, mask, weights))
    assert dj.stats(emb)["items"].lookups == 1


def test_unmapped_ids_under_a_map_of_something_else_are_one_lookup():
    twin = Twin()
    scales = jnp.arange(3, dtype=jnp.float32)

    def one(scale):
        acts, emb = dj.lookup(twin.emb, np.array([1, 2]))
        return acts.rows * scale, emb

    rows, twin.emb = jax.vmap(one, out_axes=(0, None))(scales)

    expected = twin.oracle.lookup([1, 2])
    assert_close(rows, np.stack([expected * s for s in range(3)]))
    twin.check()


def test_gradients_of_a_mapped_lookup_apply_as_one_step():
    twin = Twin(optimizer="adam_row")
    grads = random_grads((3, 4, 4))

    @jax.jit
    def step(emb, ids, grads):
        acts, emb = mapped_lookup(emb, ids)
        return dj.apply_gradients(emb, acts, grads)

    twin.emb = step(twin.emb, keys(IDS), grads)
    twin.oracle.lookup(IDS)
    twin.oracle.apply(IDS, grads)

    twin.check()


def test_per_example_losses_differentiate_through_taps():
    twin = Twin()
    ids = np.array([[1, 2], [2, 3]], np.int32)

    def loss(taps):
        acts, emb = jax.vmap(lambda i, t: dj.lookup(twin.emb, i, taps=t), out_axes=(0, None))(
            ids, taps
        )
        return jnp.sum(acts.rows**2) / 2, (acts.rows, emb)

    d_taps, (rows, twin.emb) = jax.grad(loss, has_aux=True)(jnp.zeros((2, 2, 4)))

    np.testing.assert_array_equal(d_taps, rows)
    twin.oracle.lookup(ids)
    twin.check()


@pytest.mark.parametrize("train", [True, False], ids=["train", "find"])
def test_mapped_state_is_refused(train):
    emb = create()
    many = jax.tree.map(lambda t: jnp.stack([t, t]), emb)

    refused = pytest.raises((dj.errors.DynembError, NotImplementedError), match=r"(?i)vmap|mapped")
    with refused:
        jax.vmap(lambda e, i: dj.lookup(e, i, train=train)[0].rows)(
            many, np.zeros((2, 3), np.int32)
        )

    assert dj.stats(emb)["items"].lookups == 0


def test_a_mapped_update_is_refused_or_one_exact_step():
    twin = Twin()
    acts, twin.emb = mapped_lookup(twin.emb, keys(IDS))
    twin.oracle.lookup(IDS)
    grads = random_grads((3, 4, 4))

    def one(a, g):
        return dj.apply_gradients(twin.emb, a, g)

    try:
        twin.emb = jax.vmap(one, out_axes=None)(acts, grads)
    except (dj.errors.DynembError, NotImplementedError):
        return

    twin.oracle.apply(IDS, grads)
    twin.check()
