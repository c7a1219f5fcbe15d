"""Rows of 16 bits: what is kept, how it is rounded, and that nothing else is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dynemb_jax as dj
from tests.oracle import row_rounding
from tests.plugins import ALL_OPTIMIZERS
from tests.twin import SPECIAL_KEYS, assert_close, create, keys, random_grads

FORMATS = {"bfloat16": row_rounding.BFLOAT16, "float16": row_rounding.FLOAT16}
every_dtype = pytest.mark.parametrize("dtype", FORMATS)


def rows_of(emb, ids):
    found = dj.get(emb, "items", ids)
    assert found.found.all()
    return found.rows


def train(emb, ids, grads, **options):
    acts, emb = dj.lookup(emb, ids)
    return dj.apply_gradients(emb, acts, grads, **options)


def floats(bits, dtype):
    """The numbers of 16-bit patterns."""
    return np.asarray(bits, np.uint16).view(jnp.dtype(dtype)).astype(np.float32)


@every_dtype
def test_every_number_of_the_dtype_is_kept(dtype):
    emb = create(1024, dtype=dtype)
    every = floats(np.arange(2**16).reshape(64, 1024), dtype)

    emb = dj.assign(emb, "items", np.arange(64), every)

    np.testing.assert_array_equal(rows_of(emb, np.arange(64)), every)


@every_dtype
@given(st.lists(st.floats(width=32), min_size=8, max_size=8))
def test_given_rows_are_rounded_to_the_nearest(dtype, values):
    row = np.array([values], np.float32)
    emb = dj.assign(create(8, dtype=dtype), "items", [1], row)

    got = rows_of(emb, [1])

    expected = FORMATS[dtype].nearest(row)
    np.testing.assert_array_equal(got, np.where(np.isfinite(row), expected, row))


@every_dtype
def test_ties_and_the_ends_of_the_range_are_rounded_as_jax_does(dtype):
    bits = np.arange(2**16, dtype=np.uint32) << 16
    every = floats(np.arange(0, 2**15), dtype)
    finite = every[np.isfinite(every)].astype(np.float64)
    halfway = ((finite[:-1] + finite[1:]) / 2).astype(np.float32)
    values = np.concatenate([bits.view(np.float32), halfway, -halfway])
    values = np.append(values, np.zeros(-len(values) % 1024, np.float32)).reshape(-1, 1024)
    ids = np.arange(len(values))

    got = rows_of(dj.assign(create(1024, dtype=dtype), "items", ids, values), ids)

    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(got, values.astype(jnp.dtype(dtype)).astype(np.float32))


@every_dtype
@pytest.mark.parametrize("name", ["uniform", "normal", "truncated_normal"])
def test_first_values_are_those_of_float32_rounded_to_the_nearest(dtype, name):
    rule = getattr(dj.initializers, name)()
    wide = dj.lookup(create(7, initializer=rule, seed=3), keys(SPECIAL_KEYS))[0].rows
    narrow = create(7, initializer=rule, seed=3, dtype=dtype, missing_row="initializer")

    missing = dj.lookup(narrow, keys(SPECIAL_KEYS), train=False)[0].rows
    acts, narrow = dj.lookup(narrow, keys(SPECIAL_KEYS))

    assert acts.rows.dtype == missing.dtype == jnp.dtype(dtype)
    np.testing.assert_array_equal(acts.rows, wide.astype(dtype))
    np.testing.assert_array_equal(missing, wide.astype(dtype))


@every_dtype
@pytest.mark.parametrize("dim", [1, 4, 7, 8, 9, 33, 128])
def test_an_update_rounds_by_the_bits_of_key_column_and_step(dtype, dim):
    ids, rng = list(SPECIAL_KEYS), np.random.default_rng(0)
    emb = create(dim, dtype=dtype, seed=-5, optimizer=dj.optimizers.sgd(1.0))
    # All magnitudes, those below the smallest normal float16 included.
    scale = 2.0 ** rng.integers(-30, 12, (len(ids), dim))
    grads = (rng.normal(size=(len(ids), dim)) * scale).astype(np.float32)

    emb = dj.assign(emb, "items", keys(ids), np.zeros((len(ids), dim)))
    emb = train(emb, keys(ids), grads, step=3)

    expected = [
        row_rounding.stochastic(
            FORMATS[dtype], -grad, row_rounding.random_halves(-5, "items", 3, key, dim)
        )
        for key, grad in zip(ids, grads, strict=True)
    ]
    np.testing.assert_array_equal(rows_of(emb, keys(ids)), np.float32(expected))


def many_tiny_steps(dim=64, num_keys=64, steps=1000, **config):
    """Mean and deviation of a first value of 1 after steps of 1e-6, which no bfloat16 can show."""
    rule = dj.optimizers.sgd(1e-4)
    emb = create(dim, optimizer=rule, initializer=dj.initializers.constant(1.0), **config)

    @jax.jit
    def run(emb):
        def body(emb, _):
            return train(emb, jnp.arange(num_keys), jnp.full((num_keys, dim), 0.01)), None

        return jax.lax.scan(body, emb, length=steps)[0]

    rows = rows_of(run(emb), np.arange(num_keys)).astype(np.float64)
    return rows.mean(), rows.std()


@every_dtype
def test_a_thousand_tiny_steps_move_rows_in_the_mean(dtype):
    wide, _ = many_tiny_steps(dim=1, num_keys=1)

    mean, deviation = many_tiny_steps(dtype=dtype)

    assert wide == pytest.approx(1 - 1e-3, rel=1e-4)
    assert deviation > 0
    assert abs(mean - wide) < 3 * deviation / 64


@every_dtype
def test_to_the_nearest_they_are_lost(dtype):
    assert many_tiny_steps(dim=4, num_keys=4, dtype=dtype, rounding="nearest") == (1.0, 0.0)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "bfloat16") for name in ALL_OPTIMIZERS), ("adam", "float16"), ("lamb", "float16")],
)
def test_every_optimizer_moves_rows_as_in_float32_but_for_rounding(name, dtype):
    ids = np.array([1, 2, 1, 3])
    tables = [create(4, optimizer=ALL_OPTIMIZERS[name][0], dtype=d) for d in ("float32", dtype)]

    for step in range(3):
        tables = [train(emb, ids, random_grads((4, 4), step)) for emb in tables]

    wide, narrow = (dj.get(emb, "items", ids[1:]) for emb in tables)
    spacing = 2.0**-7 if dtype == "bfloat16" else 2.0**-10
    assert_close(narrow.rows, wide.rows, rtol=0, atol=8 * spacing)
    assert (narrow.rows == FORMATS[dtype].nearest(narrow.rows)).all()
    for part in wide.state:
        assert narrow.state[part].dtype == wide.state[part].dtype
        assert_close(narrow.state[part], wide.state[part], rtol=16 * spacing, atol=8 * spacing)


@every_dtype
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
@pytest.mark.parametrize("name", ["adam_row", "rowwise_adagrad", "sgd", "from_optax_row"])
def test_a_resumed_run_continues_bit_for_bit_wherever_its_rows_lie(dtype, rounding, name):
    config = {"optimizer": ALL_OPTIMIZERS[name][0], "dtype": dtype, "rounding": rounding}
    known = np.arange(9)

    def run(emb, steps):
        for step in steps:
            emb = train(emb, known, random_grads((9, 5), step) * 1e-2, step=step)
        return emb

    emb = run(create(5, **config), range(3))
    saved = dj.get(emb, "items", known)
    fresh = dj.lookup(create(5, **config), np.arange(100, 140))[1]
    for key in known[::-1]:
        state = {part: value[[key]] for part, value in saved.state.items()}
        fresh = dj.assign(fresh, "items", [key], saved.rows[[key]], state)

    first, second = (dj.get(run(one, range(3, 6)), "items", known) for one in (emb, fresh))

    assert not np.array_equal(first.rows, saved.rows)
    np.testing.assert_array_equal(first.rows, second.rows)
    for part in first.state:
        np.testing.assert_array_equal(first.state[part], second.state[part])


def test_a_row_that_another_key_had_is_rounded_by_its_new_one():
    config = {"dtype": "bfloat16", "optimizer": dj.optimizers.sgd(1e-3), "seed": 4}
    bounded = create(64, eviction=dj.eviction.lru(max_rows=1), **config)
    erased, alone = create(64, **config), create(64, **config)
    ones = np.ones((1, 64), np.float32)

    bounded = train(train(bounded, [1], ones), [2], ones, step=7)
    erased = train(dj.erase(train(erased, [1], ones), "items", [1]), [2], ones, step=7)
    alone = train(alone, [2], ones, step=7)

    np.testing.assert_array_equal(rows_of(bounded, [2]), rows_of(alone, [2]))
    np.testing.assert_array_equal(rows_of(erased, [2]), rows_of(alone, [2]))


@every_dtype
def test_rounding_makes_no_infinity_and_keeps_what_is_not_finite(dtype):
    largest = FORMATS[dtype].largest
    emb = create(1024, dtype=dtype, optimizer=dj.optimizers.sgd(1.0))
    emb = dj.assign(emb, "items", [1, 2, 3], np.full((3, 1024), largest))
    above = largest * (1 + 2.0**-14)  # less than half a spacing, so the nearest is the largest
    grads = np.float32([largest - above, np.nan, -np.inf])[:, None].repeat(1024, 1)

    emb = train(emb, [1, 2, 3], grads)

    rows = rows_of(emb, [1, 2, 3])
    np.testing.assert_array_equal(rows[0], largest)
    assert np.isnan(rows[1]).all()
    np.testing.assert_array_equal(rows[2], np.inf)


@pytest.mark.parametrize("dtype", ["float32", *FORMATS])
@pytest.mark.parametrize("output", ["float32", *FORMATS])
def test_rows_come_out_in_the_output_dtype(dtype, output):
    emb = create(4, combiner="mean", dtype=dtype, output_dtype=output)
    ids = np.array([[1, 2], [3, 3]])

    acts, emb = dj.lookup(emb, ids)
    found, _ = dj.lookup(emb, ids, train=False)

    rows = dj.get(emb, "items", ids).rows.mean(1)
    assert acts.rows.dtype == found.rows.dtype == jnp.dtype(output)
    np.testing.assert_array_equal(acts.rows, rows.astype(jnp.dtype(output)))
    np.testing.assert_array_equal(found.rows, acts.rows)


def test_bags_are_added_up_in_float32_or_wider():
    emb = create(1, combiner="sum", dtype="bfloat16", output_dtype="float32")
    emb = dj.assign(emb, "items", [1], [[1.0]])

    acts, _ = dj.lookup(emb, np.ones((1, 1001), np.int32), train=False)

    np.testing.assert_array_equal(acts.rows, [[1001]])


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_duplicates_are_summed_in_float32_or_wider(rate):
    emb = create(1, dtype="bfloat16", optimizer=dj.optimizers.sgd(rate))
    emb = dj.assign(emb, "items", [1], [[0.0]])

    emb = train(emb, np.ones(1024, np.int32), jnp.ones((1024, 1), jnp.bfloat16))

    np.testing.assert_array_equal(rows_of(emb, [1]), [[-1024 * rate]])


def test_gradients_and_taps_go_through_rows_of_16_bits():
    emb = create(4, dtype="bfloat16", optimizer=dj.optimizers.sgd(0.5), rounding="nearest")
    emb = dj.assign(emb, "items", [1, 2], np.ones((2, 4)))
    ids = np.array([1, 2])

    def loss(taps, emb):
        acts, emb = dj.lookup(emb, ids, taps=taps)
        return jnp.sum(acts.rows.astype(jnp.float32) ** 2) / 2, (acts, emb)

    d_taps, (acts, emb) = jax.jit(jax.grad(loss, has_aux=True))(dj.taps(emb, ids), emb)
    d_rows = jax.grad(lambda rows: jnp.sum(rows * rows) / 2)(acts.rows)
    emb = dj.apply_gradients(emb, acts, d_rows)

    assert (d_taps.dtype, d_rows.dtype) == (jnp.float32, jnp.bfloat16)
    np.testing.assert_array_equal(d_taps, np.ones((2, 4)))
    np.testing.assert_array_equal(rows_of(emb, ids), np.full((2, 4), 0.5))


@pytest.mark.parametrize(
    ("config", "row_bytes"),
    [
        # 16 * ceil(dim / 8) bytes of row, state of float32, and the key with the row's numbers.
        ({}, 16 * 5 + 16),
        ({"rounding": "nearest"}, 16 * 5),
        ({"optimizer": dj.optimizers.adam(0.1, bias_correction="row")}, 16 * 5 + 2 * 160 + 16),
        ({"optimizer": dj.optimizers.rowwise_adagrad(0.1)}, 16 * 5 + 16),
        # From 128 bytes on, a multiple of 32.
        ({"dim": 60, "rounding": "nearest"}, 16 * 8),
        ({"dim": 64}, 16 * 8 + 16 + 16),
        ({"dim": 128}, 16 * 16 + 16 + 16),
    ],
)
def test_rows_take_half_the_bytes(config, row_bytes):
    options = {"dim": 40, "optimizer": dj.optimizers.sgd(0.1), **config}
    emb = create(dtype="float16", initial_rows=1000, **options)

    assert dj.stats(emb)["items"].row_bytes == 1000 * (row_bytes + 8)


def test_scan_and_several_lookups_round_like_single_steps():
    config = {"dtype": "bfloat16", "optimizer": dj.optimizers.adagrad(0.01)}
    batches, grads = np.array([[1, 2], [2, 3], [3, 1]]), random_grads((3, 2, 4))

    @jax.jit
    def scanned(emb):
        return jax.lax.scan(lambda e, b: (train(e, *b), None), emb, (batches, grads))[0]

    one, other = scanned(create(4, **config)), create(4, **config)
    for ids, grad in zip(batches, grads, strict=True):
        other = train(other, ids, grad)

    np.testing.assert_array_equal(rows_of(one, [1, 2, 3]), rows_of(other, [1, 2, 3]))
