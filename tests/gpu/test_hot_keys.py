"""Keys that are most of a batch: no gradient of a million is lost, and none counts twice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.gpu.batches import MILLION, Judged, whole_numbers
from tests.oracle.pooling import COMBINERS
from tests.oracle.row_init import Uniform
from tests.plugins import OPTIMIZERS
from tests.twin import create

DIMS = (4, 64, 128, 130, 300)
# A power of two: the product with a whole number is exact, fused with the subtraction or not.
RATE = 0.125


def sums_of(grads):
    """Column sums in float64, of an array on the device."""
    return np.asarray(grads).sum(0, dtype=np.float64)


def assert_all_rows(rows, expected):
    """Every row of a large array on the device is one row, bit for bit."""
    assert bool(jnp.all(rows == jnp.asarray(expected, jnp.float32)[None, :]))


@pytest.mark.parametrize("dim", DIMS)
def test_one_key_that_is_the_whole_batch_takes_the_exact_sum(dim, closing):
    emb = closing(create(dim, optimizer=dj.optimizers.sgd(RATE)))
    ids = jnp.full(MILLION, 7, jnp.int32)
    row = Uniform()(0, "items", [7], dim)[0].astype(np.float32)

    for seed in range(2):
        acts, emb = dj.lookup(emb, ids)
        assert_all_rows(acts.rows, row)
        grads = whole_numbers((MILLION, dim), seed)
        emb = dj.apply_gradients(emb, acts, grads)
        # Sum and product are exact, so both sides round once.
        row = row - (RATE * sums_of(grads)).astype(np.float32)

    np.testing.assert_array_equal(dj.get(emb, "items", np.array([7])).rows[0], row)
    stats = dj.stats(emb)["items"]
    assert (stats.rows, stats.inserted, stats.hits) == (1, 1, 2 * MILLION - 1)
    assert (stats.updates, stats.updated_rows) == (2, 2)


@pytest.mark.parametrize("dim", DIMS)
def test_one_key_that_is_the_whole_batch_takes_the_sum_of_real_numbers(dim, closing):
    emb = closing(create(dim, optimizer=dj.optimizers.sgd(1.0)))
    acts, emb = dj.lookup(emb, jnp.full(MILLION, 7, jnp.int32))
    grads = jax.random.uniform(jax.random.key(dim), (MILLION, dim), jnp.float32, 0.5, 1.5)

    emb = dj.apply_gradients(emb, acts, grads)

    moved = np.asarray(acts.rows[0], np.float64) - dj.get(emb, "items", np.array([7])).rows[0]
    # A sum in pieces makes every term part of at most 2**15 additions. Each rounds by up to 2**-24
    # of what is summed so far, up or down alike: some 2**7.5 * 2**-24 = 1e-5 of the sum, and twice
    # that is allowed. 21 lost gradients would show.
    np.testing.assert_allclose(moved, sums_of(grads), rtol=2e-5)


@pytest.mark.parametrize("dim", DIMS)
def test_a_key_may_come_any_number_of_times(dim, closing):
    # Around every length at which a kernel may change its way: warps, blocks, pieces.
    near = [2**k + d for k in range(3, 14) for d in (-1, 0, 1)]
    times = np.array([*range(1, 140), *near])
    ids = np.repeat(np.arange(times.size), times)
    ids = np.random.default_rng(dim).permutation(ids).astype(np.int32)
    emb = closing(create(dim, optimizer=dj.optimizers.sgd(RATE)))
    acts, emb = dj.lookup(emb, ids)
    grads = whole_numbers((ids.size, dim))

    emb = dj.apply_gradients(emb, acts, grads)

    order = np.argsort(ids, kind="stable")
    starts = np.searchsorted(ids[order], np.arange(times.size))
    sums = np.add.reduceat(np.asarray(grads)[order].astype(np.float64), starts, axis=0)
    first = Uniform()(0, "items", range(times.size), dim).astype(np.float32)
    expected = first - (RATE * sums).astype(np.float32)
    np.testing.assert_array_equal(dj.get(emb, "items", np.arange(times.size)).rows, expected)


def two_hot_keys(seed):
    """A million ids: 45 % one key, 25 % another, the rest spread over 20,000 by popularity."""
    rng = np.random.default_rng(seed)
    tail = 100 + rng.zipf(1.2, MILLION) % 20_000
    kind = rng.random(MILLION)
    return np.where(kind < 0.45, 2**40 + 7, np.where(kind < 0.7, -1, tail)).astype(np.int64)


@pytest.mark.parametrize("combiner", [None, "sum", "mean"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_hot_keys_and_a_long_tail_follow_the_reference(optimizer, combiner, closing):
    dim, bag = 20, 1 if combiner is None else 8
    judged = Judged(dim, optimizer=optimizer, combiner=combiner)
    closing(judged.emb)

    for step in range(2):
        ids = two_hot_keys(step)
        shape = ids.shape if combiner is None else (MILLION // bag, bag)
        # Pooled ids share their bag's gradient; a mean over eight takes an exact eighth of it.
        grads = whole_numbers((*shape[:1], dim), step)
        share = np.repeat(np.asarray(grads), bag, axis=0) / (bag if combiner == "mean" else 1)
        rows = judged.oracle.lookup(ids)
        judged.oracle.apply(ids, share)
        acts, judged.emb = dj.lookup(judged.emb, dj.keys(ids.reshape(shape)))
        pooled = rows.reshape(-1, bag, dim).sum(1) / (bag if combiner == "mean" else 1)
        # Rows reach some hundreds where a hot key took a step of SGD; eight of them round by
        # eight times 2**-24 of that.
        scale = np.abs(rows).max()
        np.testing.assert_allclose(acts.rows, pooled, rtol=1e-5, atol=2e-6 + 1e-6 * scale)
        judged.emb = dj.apply_gradients(judged.emb, acts, grads)

    # The sums are exact; what is left is the rounding of two steps of the optimizer.
    judged.check()


@pytest.mark.parametrize("combiner", COMBINERS)
def test_a_bag_of_one_key_is_one_update(combiner, closing):
    # Powers of two and whole numbers: every product and every sum is exact, also in float32.
    length, first = 1 << 16, 0.5
    emb = create(
        64,
        combiner=combiner,
        optimizer=dj.optimizers.sgd(1.0),
        initializer=dj.initializers.constant(first),
    )
    closing(emb)
    weights = np.full((2, length), 0.5, np.float32)
    ids = np.full((2, length), 9, np.int32)
    grads = whole_numbers((2, 64))

    acts, emb = dj.lookup(emb, dj.Padded(ids, lengths=[length, length], weights=weights))
    emb = dj.apply_gradients(emb, acts, grads)

    # sum(w), sum(w) / sum(w) and sum(w) / sqrt(sum(w**2)). Square root and quotient of the last
    # may be a unit off.
    total = {"sum": length / 2, "mean": 1.0, "sqrtn": np.sqrt(length)}[combiner]
    np.testing.assert_allclose(acts.rows, np.full((2, 64), first * total), rtol=5e-7)
    moved = first - dj.get(emb, "items", np.array([9])).rows[0]
    expected = sums_of(grads) * total
    np.testing.assert_allclose(moved, expected, rtol=5e-7, atol=1e-6)
