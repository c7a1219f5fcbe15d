"""What every initializer must satisfy: the reference bits, its distribution, and independence."""

import numpy as np
import pytest
import scipy.stats

import dynemb_jax as dj
from tests.plugins import INITIALIZERS
from tests.twin import SAME_LOW_HALF, SPECIAL_KEYS, create, keys, random_grads

IDS = [*SPECIAL_KEYS, *SAME_LOW_HALF, *range(100, 200)]
EXACT = ("constant", "uniform", "uniform_scaled")


def first(name, ids=IDS, dim=6, seed=11, table="items"):
    emb = create(dim, initializer=INITIALIZERS[name][0], seed=seed, name=table)
    return np.asarray(dj.lookup(emb, keys(ids))[0].rows)


def reference(name, ids=IDS, dim=6, seed=11, table="items"):
    return INITIALIZERS[name][1](seed, table, ids, dim)


@pytest.mark.parametrize("dim", [1, 4, 6, 33])
@pytest.mark.parametrize("name", EXACT)
def test_uniform_and_constant_values_have_the_reference_bits(name, dim):
    np.testing.assert_array_equal(first(name, dim=dim), reference(name, dim=dim))


@pytest.mark.parametrize("name", [n for n in INITIALIZERS if n not in EXACT])
def test_normal_values_follow_the_reference(name):
    rows, expected = first(name, range(3000), dim=33), reference(name, range(3000), dim=33)

    deviation = np.abs(expected).max()
    np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-5 * deviation / 4)


@pytest.mark.parametrize(
    ("name", "table", "seed"), [("uniform", "a-table.of_7", -3), ("normal", "x", 2**70 + 1)]
)
def test_seed_and_table_name_enter_as_documented(name, table, seed):
    rows = first(name, seed=seed, table=table)

    np.testing.assert_allclose(rows, reference(name, seed=seed, table=table), rtol=1e-5, atol=1e-6)


DISTRIBUTIONS = {
    "uniform": scipy.stats.uniform(-0.25, 0.5),
    "uniform_scaled": scipy.stats.uniform(-0.7, 1.4),
    "normal": scipy.stats.norm(scale=0.25),
    "normal_scaled": scipy.stats.norm(scale=2.5),
    "truncated_normal": scipy.stats.truncnorm(-2, 2, scale=0.25),
    "truncated_normal_scaled": scipy.stats.truncnorm(-2, 2, scale=0.02),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_values_have_their_distribution(name):
    rows = first(name, range(4000), dim=16, seed=1)

    assert scipy.stats.kstest(rows.ravel(), DISTRIBUTIONS[name].cdf).pvalue > 1e-3


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_columns_and_neighbouring_keys_do_not_correlate(name):
    rows = first(name, range(4000), dim=8, seed=2)

    both = np.concatenate([rows[:-1], rows[1:]], axis=1)
    correlation = np.corrcoef(both, rowvar=False) - np.eye(16)
    # Neighbours share their columns shifted by one row, so all 120 pairs are independent draws.
    assert np.abs(correlation).max() < 5 / np.sqrt(4000)


@pytest.mark.parametrize("name", INITIALIZERS)
def test_a_first_row_depends_on_no_order_batch_or_group(name):
    emb = create(6, initializer=INITIALIZERS[name][0], seed=11)
    other = create(6, initializer=INITIALIZERS[name][0], seed=11, initial_rows=5000)
    shuffled = np.random.default_rng(0).permutation(len(IDS))

    together, emb = dj.lookup(emb, keys(IDS))
    _, other = dj.lookup(other, keys(range(5000, 6000)))
    apart, other = dj.lookup(other, keys(np.array(IDS, object)[shuffled]))

    np.testing.assert_array_equal(np.asarray(together.rows)[shuffled], apart.rows)


@pytest.mark.parametrize("name", INITIALIZERS)
def test_a_row_erased_and_inserted_again_has_its_first_values(name):
    emb = create(6, initializer=INITIALIZERS[name][0], seed=11)
    acts, emb = dj.lookup(emb, keys(IDS))
    emb = dj.apply_gradients(emb, acts, random_grads((len(IDS), 6)))

    emb = dj.erase(emb, "items", keys(IDS))
    _, emb = dj.lookup(emb, keys(range(-500, -400)))
    again, emb = dj.lookup(emb, keys(IDS[::-1]))

    np.testing.assert_array_equal(again.rows, np.asarray(acts.rows)[::-1])


@pytest.mark.parametrize("name", INITIALIZERS)
def test_a_missing_row_by_initializer_is_the_first_row(name):
    emb = create(6, initializer=INITIALIZERS[name][0], seed=11, missing_row="initializer")

    found, _ = dj.lookup(emb, keys(IDS), train=False)
    inserted, _ = dj.lookup(emb, keys(IDS))

    np.testing.assert_array_equal(found.rows, inserted.rows)
