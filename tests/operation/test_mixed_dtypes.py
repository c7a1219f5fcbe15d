"""Tables of several dtypes in one call, exact: whole numbers that every dtype can hold."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj

DTYPES = ("float32", "bfloat16", "float16")
NUM_KEYS = 40
HOT = 7


def drawn(rng, count):
    """Keys of which one is hot, so that its gradients lie in several runs of any size."""
    keys = rng.integers(0, NUM_KEYS, count)
    return np.where(rng.random(count) < 0.5, HOT, keys)


class Model:
    """Rows of whole numbers that move by the sum of their gradients."""

    def __init__(self, dim):
        self.rows = np.zeros((NUM_KEYS, dim))

    def pooled(self, bags, weights):
        return np.array(
            [(self.rows[b] * w[:, None]).sum(0) for b, w in zip(bags, weights, strict=True)]
        )

    def pull(self, sums):
        self.rows -= sums


def signs(rng, shape):
    """Gradients whose sums stay small: of each column one in a hundred is not 0."""
    return (rng.integers(-1, 2, shape) * (rng.random(shape) < 0.01)).astype(np.float32)


@pytest.mark.parametrize("grads_as_rows", [True, False])
@pytest.mark.parametrize("dim", [1, 3, 8, 12, 128, 264, 520])
def test_every_dtype_holds_small_whole_numbers_exactly(dim, grads_as_rows):
    rng = np.random.default_rng(dim)
    tables = [
        dj.TableConfig(
            dtype,
            dim,
            dtype=dtype,
            optimizer=dj.optimizers.sgd(1.0),
            initializer=dj.initializers.constant(),
        )
        for dtype in DTYPES
    ]
    combiners = (None, "sum", "sum")
    emb = dj.create([dj.FeatureConfig(table, how) for table in tables for how in combiners])
    models = [Model(dim) for _ in tables]

    for _ in range(3):
        ids, grads, sums = [], [], []
        expected = []
        for model, dtype in zip(models, DTYPES, strict=True):
            plain, bags = drawn(rng, 700), drawn(rng, 60).reshape(20, 3)
            weights = rng.integers(-1, 2, bags.shape).astype(np.float32)
            splits = np.sort(rng.integers(0, 300, 8))
            splits[0] = 0
            spans = list(itertools.pairwise(splits))
            ragged = drawn(rng, 320)
            lengths = rng.integers(0, 4, len(bags))
            weights[np.arange(3) >= lengths[:, None]] = 0
            padded = dj.Padded(bags, lengths, weights=weights)
            ids += [plain, padded, dj.Ragged(ragged, splits)]
            own = [signs(rng, (n, dim)) for n in (700, 20, 7)]
            total = np.zeros((NUM_KEYS, dim))
            np.add.at(total, plain, own[0])
            np.add.at(total, bags, weights[..., None] * own[1][:, None])
            for b, (begin, end) in enumerate(spans):
                np.add.at(total, ragged[begin:end], own[2][b])
            sums.append(total)
            expected.append(model.rows[plain])
            expected.append(model.pooled(bags, weights))
            pieces = [ragged[begin:end] for begin, end in spans]
            expected.append(model.pooled(pieces, [np.ones(len(p)) for p in pieces]))
            grads += [g.astype(jnp.dtype(dtype)) if grads_as_rows else g for g in own]

        found, _ = dj.lookup(emb, ids, train=False)
        acts, emb = dj.lookup(emb, ids)
        emb = dj.apply_gradients(emb, acts, grads)

        for rows in (acts.rows, found.rows):
            for row, exact, dtype in zip(rows, expected, np.repeat(DTYPES, 3), strict=True):
                assert row.dtype == jnp.dtype(dtype)
                # Bags may be larger than whole numbers that 8 bits can tell apart.
                np.testing.assert_array_equal(row, np.float32(exact).astype(jnp.dtype(dtype)))
        for model, total in zip(models, sums, strict=True):
            model.pull(total)

    for table, model in zip(tables, models, strict=True):
        kept = dj.get(emb, table.name, np.arange(NUM_KEYS))
        assert np.abs(model.rows).max() <= 256
        np.testing.assert_array_equal(kept.rows[kept.found], model.rows[kept.found])


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("dim", [5, 16, 300])
def test_absent_and_padded_ids_look_the_same_in_every_dtype(dim, dtype):
    kinds = {"dtype": dtype, "missing_row": "initializer", "output_dtype": dtype}
    table = dj.TableConfig("items", dim, initializer=dj.initializers.normal(), **kinds)
    wide = dj.TableConfig(
        "items", dim, initializer=dj.initializers.normal(), missing_row="initializer"
    )
    ids = dj.Padded(np.arange(12).reshape(4, 3), lengths=np.array([0, 1, 3, 2]))

    got = dj.lookup(dj.create(dj.FeatureConfig(table)), ids, train=False)[0].rows
    rows = dj.lookup(dj.create(dj.FeatureConfig(wide)), ids, train=False)[0].rows

    np.testing.assert_array_equal(got, rows.astype(dtype))


@pytest.mark.parametrize("num_tables", [3, 40])
def test_many_tables_of_16_bits_move_in_one_update(num_tables):
    rules = (dj.optimizers.sgd(1.0), dj.optimizers.momentum(1.0, momentum=0.0))
    tables = [
        dj.TableConfig(
            f"t{t}",
            8,
            dtype=DTYPES[t % 3],
            optimizer=rules[t // 2 % 2],
            initializer=dj.initializers.constant(),
        )
        for t in range(num_tables)
    ]
    emb = dj.create([dj.FeatureConfig(table) for table in tables])
    ids = [np.arange(4) + t for t in range(num_tables)]

    @jax.jit
    def step(emb, ids):
        acts, emb = dj.lookup(emb, ids)
        return dj.apply_gradients(emb, acts, [jnp.full_like(rows, 2) for rows in acts.rows])

    emb = step(step(emb, ids), ids)

    for table, own in zip(tables, ids, strict=True):
        np.testing.assert_array_equal(dj.get(emb, table.name, own).rows, np.full((4, 8), -4))


def test_gradients_of_several_dtypes_for_one_table_are_summed_as_floats():
    table = dj.TableConfig(
        "items",
        8,
        dtype="bfloat16",
        optimizer=dj.optimizers.sgd(1.0),
        initializer=dj.initializers.constant(),
    )
    emb = dj.create([dj.FeatureConfig(table), dj.FeatureConfig(table)])

    acts, emb = dj.lookup(emb, [np.array([1]), np.array([1])])
    half, whole = jnp.ones((1, 8), jnp.bfloat16), jnp.full((1, 8), 2**-10 - 1, jnp.float32)
    emb = dj.apply_gradients(emb, acts, [half, whole])

    np.testing.assert_array_equal(dj.get(emb, "items", [1]).rows, np.full((1, 8), -(2.0**-10)))
