"""More elements than 31 or 32 bits count: rows beyond them are as good as the first ones.

2**24 rows of 129 columns are 2**31.01 elements; with an accumulator for each column, and both
padded to 132, they are 2**32.05. Some 20 GiB in all.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.gpu.batches import assert_rows_close
from tests.oracle.row_init import Uniform
from tests.plugins import OPTIMIZERS
from tests.twin import create

ROWS, DIM = 1 << 24, 129
STRIDE = 2 * 132
CHUNK = 1 << 19
RULE, REFERENCE = OPTIMIZERS["adagrad"]

pytestmark = pytest.mark.big


def keys_of(numbers):
    """Keys of 64 bits from counters below 2**32, under JAX or NumPy; different ones differ."""
    module = jnp if isinstance(numbers, jax.Array) else np
    low = numbers.astype(np.uint32)
    return dj.Keys(module.stack([low, low * np.uint32(2654435761)], axis=-1))


def words_of(numbers):
    """The same keys as uint64."""
    low = numbers.astype(np.uint64)
    return (low * np.uint64(2654435761) % np.uint64(2**32)) << np.uint64(32) | low


def gradients_of(numbers):
    """float32 gradients that tell rows and columns apart, under JAX or NumPy; halves, exact."""
    module = jnp if isinstance(numbers, jax.Array) else np
    columns = module.arange(DIM, dtype=np.uint32)
    mixed = numbers.astype(np.uint32)[:, None] * np.uint32(7) + columns[None, :] * np.uint32(5)
    return (mixed % np.uint32(17)).astype(np.float32) * np.float32(0.5) - np.float32(4.25)


@functools.partial(jax.jit, donate_argnums=0)
def insert(emb, start):
    numbers = start + jnp.arange(CHUNK, dtype=jnp.uint32)
    return dj.lookup(emb, keys_of(numbers))[1]


@functools.partial(jax.jit, donate_argnums=0)
def train(emb, numbers):
    acts, emb = dj.lookup(emb, keys_of(numbers))
    return dj.apply_gradients(emb, acts, gradients_of(numbers)), acts.rows


@jax.jit
def find(emb, numbers):
    return dj.lookup(emb, keys_of(numbers), train=False)[0].rows


def first_rows(numbers):
    """What rows hold before they are trained."""
    return Uniform()(0, "items", words_of(numbers), DIM)


def sample():
    """Numbers of rows, the later the row the later in the table: rows come in order of chunks."""
    rng = np.random.default_rng(0)
    edges = [0, 2**31 // STRIDE, 2**32 // STRIDE, 2**31 // 132, 2**31 // DIM, ROWS]
    near = [n for edge in edges for n in range(edge - 300, edge + 300) if 0 <= n < ROWS]
    first, last = rng.integers(0, CHUNK, 1500), rng.integers(ROWS - CHUNK, ROWS, 1500)
    return np.unique(np.concatenate([near, first, last, rng.integers(0, ROWS, 1500)]))


@pytest.fixture
def table():
    """A table of 2**24 rows, filled in chunks from a counter, growing as it fills."""
    emb = create(DIM, optimizer=RULE)
    state = [emb]
    for start in range(0, ROWS, CHUNK):
        state[0] = insert(state[0], jnp.uint32(start))
    yield state
    dj.close(emb)


def test_keys_are_the_same_on_both_sides():
    numbers = np.array([0, 1, 77, ROWS - 1])

    on_device = keys_of(jnp.asarray(numbers.astype(np.uint32)))

    np.testing.assert_array_equal(dj.keys(words_of(numbers)).pairs, on_device.pairs)
    np.testing.assert_array_equal(keys_of(numbers).pairs, on_device.pairs)
    np.testing.assert_array_equal(
        gradients_of(numbers), gradients_of(jnp.asarray(numbers.astype(np.uint32)))
    )


def test_every_row_starts_as_it_should(table):
    numbers = sample()

    got = dj.get(table[0], "items", words_of(numbers))
    found = find(table[0], jnp.asarray(numbers.astype(np.uint32)))

    assert ROWS * DIM > 2**31
    assert ROWS * STRIDE > 2**32
    stats = dj.stats(table[0])["items"]
    assert (stats.rows, stats.inserted, stats.rows_copied) == (ROWS, ROWS, 0)
    assert stats.row_bytes >= ROWS * STRIDE * 4
    assert got.found.all()
    expected = first_rows(numbers).astype(np.float32)
    np.testing.assert_array_equal(got.rows, expected)
    np.testing.assert_array_equal(found, expected)
    assert (got.state["accumulator"] == np.float32(REFERENCE.initial_accumulator)).all()


def test_all_keys_are_found_again(table):
    count = 0

    for start in range(0, ROWS, CHUNK):
        numbers = jnp.uint32(start) + jnp.arange(CHUNK, dtype=jnp.uint32)
        rows = find(table[0], numbers)
        # A missing row is zeros; a first row is not.
        count += int(jnp.sum(jnp.any(rows != 0, axis=1)))

    assert count == dj.stats(table[0])["items"].found == ROWS


def test_rows_on_both_sides_are_trained_and_their_neighbours_are_not(table):
    last, first = np.arange(ROWS - CHUNK, ROWS, 3), np.arange(0, CHUNK, 3)
    # The first again at the end: duplicates over all of the table.
    numbers = np.concatenate([last, first, last[:1000]])

    table[0], rows = train(table[0], jnp.asarray(numbers.astype(np.uint32)))

    seen = np.linspace(0, numbers.size - 1, 1500).astype(int)
    np.testing.assert_array_equal(
        np.asarray(rows[jnp.asarray(seen)]), first_rows(numbers[seen]).astype(np.float32)
    )
    looked_at = sample()
    times = np.isin(looked_at, numbers).astype(int) + np.isin(looked_at, last[:1000])
    grads = gradients_of(looked_at).astype(np.float64) * times[:, None]
    state = {"accumulator": np.full((looked_at.size, DIM), REFERENCE.initial_accumulator)}
    before = first_rows(looked_at)
    after, moved = REFERENCE.update(before, state, grads, REFERENCE.learning_rate, 0)
    got = dj.get(table[0], "items", words_of(looked_at))
    assert 1000 < np.count_nonzero(times) < looked_at.size - 1000
    assert_rows_close(got.rows, after)
    assert_rows_close(got.state["accumulator"], moved["accumulator"])
    untouched = times == 0
    np.testing.assert_array_equal(got.rows[untouched], before[untouched].astype(np.float32))
    stats = dj.stats(table[0])["items"]
    assert (stats.rows, stats.updated_rows) == (ROWS, np.unique(numbers).size)


def test_the_last_rows_are_erased_assigned_and_used_again(table):
    numbers = np.arange(ROWS - 4000, ROWS)
    gone, written = numbers[::2], numbers[1::2]
    values = np.random.default_rng(0).normal(size=(written.size, DIM)).astype(np.float32)

    emb = dj.erase(table[0], "items", words_of(gone))
    emb = dj.assign(emb, "items", words_of(written), values)
    _, emb = dj.lookup(emb, dj.keys(words_of(gone[:1000])))
    newcomers = np.arange(ROWS, ROWS + 1000)
    _, emb = dj.lookup(emb, dj.keys(words_of(newcomers)))
    table[0] = emb

    found = dj.get(emb, "items", words_of(np.concatenate([gone, newcomers])))
    present = np.concatenate([gone[:1000], newcomers])
    np.testing.assert_array_equal(found.found, [True] * 1000 + [False] * 1000 + [True] * 1000)
    np.testing.assert_array_equal(found.rows[found.found], first_rows(present).astype(np.float32))
    np.testing.assert_array_equal(dj.get(emb, "items", words_of(written)).rows, values)
    assert dj.stats(emb)["items"].rows == ROWS
