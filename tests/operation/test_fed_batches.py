"""Feeding: what comes out of a batch's leaves, bit by bit, and where it lies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.twin import create, keys

BIG = 2**40 + 7


def fed(batch, **options):
    """The batch as it comes out."""
    (out,) = dj.feed([batch], **options)
    return out


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (0,)])
def test_64_bit_arrays_become_keys_with_all_their_bits(dtype, shape):
    ids = np.resize(np.array([BIG, 2**64 - 1, 5], np.uint64), shape).astype(dtype)

    out = fed({"user": ids, "deep": [(ids,)]})

    for leaf in (out["user"], out["deep"][0][0]):
        assert isinstance(leaf, dj.Keys)
        assert isinstance(leaf.pairs, jax.Array)
        np.testing.assert_array_equal(leaf.pairs, dj.keys(ids).pairs)


@pytest.mark.parametrize(
    "leaf",
    [
        np.arange(3, dtype=np.int32),
        np.arange(3, dtype=np.uint8),
        np.ones((2, 2), np.float32),
        np.array([True, False]),
        np.float32(2.5),
    ],
    ids=["int32", "uint8", "float32", "bool", "scalar"],
)
def test_other_arrays_keep_their_dtype_and_values(leaf):
    out = fed(leaf)

    assert isinstance(out, jax.Array)
    assert out.dtype == leaf.dtype
    np.testing.assert_array_equal(out, leaf)


def test_jax_arrays_keys_none_and_numbers_pass():
    out = fed({"jax": jnp.arange(3), "keys": keys([BIG]), "none": None, "number": 7, "float": 0.5})

    np.testing.assert_array_equal(out["jax"], np.arange(3))
    np.testing.assert_array_equal(out["keys"].pairs, keys([BIG]).pairs)
    assert out["none"] is None
    assert (int(out["number"]), float(out["float"])) == (7, 0.5)


def test_padded_keeps_ids_and_padding_whole():
    padded = dj.Padded(
        np.array([[BIG, 1], [2, 3]]),
        lengths=np.array([2**32 + 1, 1]),  # cut to 32 bits, the first would be 1
        weights=np.array([[1, 2], [3, 4]]),
    )

    out = fed(padded)

    np.testing.assert_array_equal(out.ids.pairs, padded.ids.pairs)
    assert out.lengths.dtype == np.int32
    assert out.lengths[0] > 2
    assert out.lengths[1] == 1
    np.testing.assert_array_equal(out.weights, np.array([[1, 2], [3, 4]], np.float32))


@pytest.mark.parametrize("value", [np.int64(-(2**31)), np.uint64(2**32 - 1), np.array(7)])
def test_a_single_64_bit_integer_becomes_one_of_32_bits(value):
    out = fed({"step": value})["step"]

    assert (out.shape, int(out)) == ((), int(value))


@pytest.mark.parametrize(
    "value", [np.int64(2**31), np.uint64(2**32), np.array(-(2**40)), 2**31, -(2**31) - 1, 2**70]
)
def test_a_single_integer_beyond_32_bits_is_refused_by_name(value):
    with pytest.raises(dj.errors.InputError, match=r"batch\['step'\] must fit into 32 bits.*keys"):
        fed({"step": value})


@pytest.mark.parametrize("value", [2**31 - 1, -(2**31), True])
def test_an_integer_of_python_within_32_bits_passes(value):
    assert int(fed({"step": value})["step"]) == value


def test_an_integer_beyond_64_bits_is_refused_when_x64_is_on():
    with jax.enable_x64(True):
        assert int(fed({"step": 2**40})["step"]) == 2**40
        with pytest.raises(dj.errors.InputError, match=r"batch\['step'\] must fit into 64 bits"):
            fed({"step": 2**63})


def test_integers_stay_what_they_are_when_x64_is_on():
    with jax.enable_x64(True):
        out = fed({"ids": np.array([BIG]), "padded": dj.Padded([[1]], lengths=np.array([1]))})

        assert out["ids"].dtype == np.int64
        assert out["ids"][0] == BIG
        assert out["padded"].lengths.dtype == np.int64


def test_batches_are_where_the_caller_puts_new_arrays(platform):
    out = fed({"ids": np.array([BIG]), "x": np.ones(2, np.float32)})

    assert {d.platform for leaf in jax.tree.leaves(out) for d in leaf.devices()} == {
        jax.devices(platform)[0].platform
    }


@pytest.mark.parametrize("wrap", [lambda d: d, jax.sharding.SingleDeviceSharding])
def test_batches_are_where_they_were_asked_to_be(platform, wrap):
    device = jax.devices(platform)[-1]

    out = fed({"ids": np.array([BIG]), "x": np.ones(2, np.float32)}, device=wrap(device))

    assert all(leaf.devices() == {device} and leaf.committed for leaf in jax.tree.leaves(out))


def test_a_source_may_fill_the_same_buffers_again():
    ids, x = np.zeros(1 << 16, np.int64), np.zeros(1 << 16, np.float32)

    def source():
        for i in range(8):
            ids[:], x[:] = i, i
            yield dj.keys(ids), x

    out = list(dj.feed(source(), depth=8))

    assert [set(np.asarray(k.pairs)[:, 0].tolist()) for k, _ in out] == [{i} for i in range(8)]
    assert [set(np.asarray(x).tolist()) for _, x in out] == [{i} for i in range(8)]


def test_fed_batches_train_the_tables_like_plain_ones():
    rng = np.random.default_rng(0)
    batches = [(rng.integers(0, 50, 64) * BIG, np.float32(i)) for i in range(10)]

    @jax.jit
    def step(emb, ids, scale):
        acts, emb = dj.lookup(emb, ids)
        return dj.apply_gradients(emb, acts, acts.rows * scale)

    plain, ready = create(), create()
    for ids, scale in batches:
        plain = step(plain, dj.keys(ids), scale)
    for ids, scale in dj.feed(batches):
        ready = step(ready, ids, scale)

    known = keys([i * BIG for i in range(50)])
    np.testing.assert_array_equal(
        dj.get(ready, "items", known).rows, dj.get(plain, "items", known).rows
    )
