"""Batches at the edge of arithmetic: weights that cancel, very long bags, nothing at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.twin import assert_close, create


@pytest.mark.parametrize("transform", ["outside", "inside grad"])
def test_weights_that_cancel_give_nothing_and_no_gradient(transform):
    emb = create(1, combiner="mean", optimizer=dj.optimizers.sgd(1.0))
    rows = np.array([[1.0], [2.0], [3.0], [5.0]], np.float32)
    emb = dj.assign(emb, "items", np.arange(4), rows)
    weights = jnp.array([[0.7, 0.2, -0.7, -0.2]])

    def pooled(weights, emb):
        ids = dj.Padded(np.arange(4)[None], mask=np.ones((1, 4), bool), weights=weights)
        acts, emb = dj.lookup(emb, ids)
        return acts.rows.sum(), (acts, emb)

    if transform == "outside":
        value, (acts, emb) = pooled(weights, emb)
    else:
        (value, (acts, emb)), slope = jax.value_and_grad(pooled, has_aux=True)(weights, emb)
        np.testing.assert_array_equal(slope, np.zeros((1, 4)))
    emb = dj.apply_gradients(emb, acts, np.ones((1, 1), np.float32))

    assert float(value) == 0.0
    np.testing.assert_array_equal(dj.get(emb, "items", np.arange(4)).rows, rows)


def test_a_bag_of_many_ids_keeps_its_digits():
    emb = create(1, combiner="mean")
    emb = dj.assign(emb, "items", [7], np.array([[0.1]], np.float32))
    many = np.full((1, 200_000), 7, np.int32)

    acts, emb = dj.lookup(emb, many, train=False)

    np.testing.assert_allclose(acts.rows, [[0.1]], rtol=2e-5)


@pytest.mark.parametrize("empty", [(3, 0), (0, 3)])
def test_stacked_activations_may_be_empty(empty):
    emb = create(2)

    emb, acts = jax.lax.scan(
        lambda emb, ids: dj.lookup(emb, ids)[::-1], emb, np.zeros(empty, np.int32)
    )
    if empty[0]:
        emb = dj.apply_gradients(emb, acts, np.zeros((*empty, 2), np.float32))

    assert dj.stats(emb)["items"].rows == 0


def test_lengths_of_64_bits_are_checked_before_they_are_cut():
    ids = dj.Padded(np.array([[1, 2], [3, 4]]), lengths=np.array([2**32 + 1, 0]))

    with pytest.raises(dj.errors.InputError, match="lengths"):
        dj.lookup(create(2, combiner="sum"), ids)


def test_a_table_without_ids_beside_another_in_one_of_two_lookups():
    a = dj.TableConfig("a", 3, optimizer=dj.optimizers.sgd(1.0))
    b = dj.TableConfig("b", 2, optimizer=dj.optimizers.sgd(1.0))
    emb = dj.create({"a": dj.FeatureConfig(a), "b": dj.FeatureConfig(b)})
    none = np.zeros(0, np.int32)
    ids = np.array([4, 5, 4])

    first, emb = dj.lookup(emb, {"a": none, "b": ids})
    second, emb = dj.lookup(emb, {"a": none, "b": None})
    before = dj.get(emb, "b", [4, 5]).rows
    grads = [{"a": np.zeros((0, 3)), "b": np.ones((3, 2))}, {"a": np.zeros((0, 3)), "b": None}]
    emb = dj.apply_gradients(emb, [first, second], jax.tree.map(jnp.float32, grads))

    assert_close(dj.get(emb, "b", [4, 5]).rows, before - np.array([[2.0], [1.0]]))
    assert dj.stats(emb)["a"].rows == 0
