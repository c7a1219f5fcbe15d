"""Keys: every 64-bit value is one, and none is shortened on the way in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.twin import (
    INT64_MAX,
    INT64_MIN,
    SAME_LOW_HALF,
    SPECIAL_KEYS,
    Twin,
    create,
    keys,
    random_grads,
    u64,
)

BIG = 2**40 + 7


def stored(emb, key):
    """Whether exactly this one key is in the table."""
    return dj.stats(emb)["items"].rows == 1 and dj.contains(emb, "items", keys([key])).all()


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_pairs_are_the_halves_of_the_64_bit_value(dtype):
    values = np.array([0, 1, np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)

    pairs = dj.keys(values).pairs

    wide = values.astype(np.int64 if np.issubdtype(dtype, np.signedinteger) else np.uint64)
    wide = wide.view(np.uint64)
    np.testing.assert_array_equal(pairs[:, 0], (wide & np.uint64(2**32 - 1)).astype(np.uint32))
    np.testing.assert_array_equal(pairs[:, 1], (wide >> np.uint64(32)).astype(np.uint32))
    assert pairs.dtype == np.uint32


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (2, 0, 4)])
def test_keys_have_the_shape_of_the_integers(shape):
    made = dj.keys(np.zeros(shape, np.int64))

    assert (made.shape, made.pairs.shape) == (shape, (*shape, 2))


def test_any_memory_layout_of_integers_makes_the_same_keys():
    values = np.array([[BIG, -1, 3], [2, 0, -(2**40)]])
    wide = np.zeros((2, 6), np.int64)
    wide[:, ::2] = values

    for other in (values.astype(">i8"), np.asfortranarray(values), wide[:, ::2]):
        np.testing.assert_array_equal(dj.keys(other).pairs, dj.keys(values).pairs)


def test_python_integers_of_64_bits_are_keys():
    made = dj.keys([INT64_MIN, INT64_MAX, -1, BIG])

    np.testing.assert_array_equal(made.pairs, keys([INT64_MIN, INT64_MAX, -1, BIG]).pairs)


@pytest.mark.parametrize(
    "bad", [[1.5], [True], ["7"], [2**64], [INT64_MIN - 1], [None], [[1], [2, 3]]]
)
def test_what_is_no_64_bit_integer_is_no_key(bad):
    with pytest.raises(dj.errors.InputError):
        dj.keys(bad)


def test_keys_are_a_pytree_that_crosses_jit():
    through = jax.jit(lambda k: k)(keys([[BIG, -1]]))

    assert isinstance(through, dj.Keys)
    assert through.shape == (1, 2)
    np.testing.assert_array_equal(through.pairs, keys([[BIG, -1]]).pairs)


def test_special_keys_behave_like_any_key():
    twin = Twin(optimizer="adam")
    ids = [*SPECIAL_KEYS, *range(1000, 2000)]

    for step in range(2):
        twin.train(ids, seed=step)
    twin.find([*SPECIAL_KEYS, -3])
    twin.erase([-1, INT64_MIN])
    twin.assign([INT64_MIN, -2], random_grads((2, 4)))

    twin.check([*ids, -3])


def test_keys_that_share_their_low_half_are_different_keys():
    twin = Twin()

    for step in range(2):
        twin.train(SAME_LOW_HALF, seed=step)

    twin.check()


@pytest.mark.parametrize(
    "ids",
    [np.array([BIG]), np.array([BIG], np.uint64), BIG, [BIG], dj.keys([BIG])],
    ids=["int64", "uint64", "int", "list", "keys"],
)
def test_ids_given_eagerly_keep_their_64_bits(ids):
    _, emb = dj.lookup(create(), ids)

    assert stored(emb, BIG)


def test_wide_ids_closed_over_by_jit_keep_their_64_bits():
    ids = np.array([BIG])

    emb = jax.jit(lambda emb: dj.lookup(emb, ids)[1])(create())

    assert stored(emb, BIG)


def test_keys_passed_to_jit_keep_their_64_bits():
    emb = jax.jit(lambda emb, ids: dj.lookup(emb, ids)[1])(create(), keys([BIG]))

    assert stored(emb, BIG)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("dtype", "value", "key"),
    [(np.int32, -5, -5), (np.uint32, 2**32 - 5, 2**32 - 5), (np.int32, 2**31 - 1, 2**31 - 1)],
)
def test_narrow_ids_are_extended_by_their_sign(jit, dtype, value, key):
    lookup = jax.jit(dj.lookup) if jit else dj.lookup

    _, emb = lookup(create(), jnp.array([value], dtype))

    assert stored(emb, key)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_wide_ids_pass_whole_through_jit_when_x64_is_on(dtype):
    with jax.enable_x64(True):
        ids = jnp.asarray(u64([BIG, -1]).astype(dtype))
        _, emb = jax.jit(dj.lookup)(create(), ids)

    assert dj.contains(emb, "items", keys([BIG, -1])).all()


def test_x64_mode_changes_no_result():
    with jax.enable_x64(True):
        twin = Twin(optimizer="adam")
        twin.train([1, -1, 2**50, 1])
        twin.find([1, 5])
        twin.check()


def test_minus_one_is_a_key_when_no_padding_is_declared():
    twin = Twin()

    twin.train([[-1, 5], [-1, -1]])

    twin.check([-1, 5])


@pytest.mark.parametrize(
    "ids", [np.array([1.0], np.float32), np.array([True]), jnp.array([1.0]), "seven", {"a": 1}]
)
def test_ids_that_are_no_integers_are_refused(ids):
    emb = create()

    with pytest.raises(dj.errors.InputError):
        dj.lookup(emb, ids)

    dj.lookup(emb, np.array([1]))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.uint8, np.uint16])
def test_small_integers_are_keys_or_refused_but_never_others(dtype):
    value = np.iinfo(dtype).min or np.iinfo(dtype).max
    emb = create()

    try:
        _, emb = dj.lookup(emb, np.array([value], dtype))
    except dj.errors.InputError:
        return

    assert stored(emb, int(value))


def test_int64_arrays_made_by_jax_keep_their_bits_after_x64_is_off_again():
    with jax.enable_x64(True):
        ids = jnp.asarray(np.array([BIG]))

    _, emb = dj.lookup(create(), ids)

    assert stored(emb, BIG)


@pytest.mark.parametrize("put", [lambda keys: keys, jax.device_put, jax.jit(lambda keys: keys)])
def test_keys_end_where_they_end_wherever_they_lie(put):
    keys = put(dj.keys([1, 2**40, -1]))

    assert [int(np.asarray(k.pairs)[0]) for k in keys] == [1, 0, 2**32 - 1]
    for index in (3, -4):
        with pytest.raises(IndexError, match="out of bounds"):
            keys[index]
    assert keys[-1].shape == ()
    assert keys[1:].shape == (2,)
