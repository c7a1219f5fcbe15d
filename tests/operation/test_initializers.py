"""Initializers as users name them: defaults, scales, and where they apply."""

import numpy as np
import pytest

import dynemb_jax as dj
from tests.plugins import INITIALIZERS
from tests.twin import create, keys


def first(initializer, ids=(1, 2, 3), dim=16, seed=0, name="items"):
    emb = create(dim, initializer=initializer, seed=seed, name=name)
    return np.asarray(dj.lookup(emb, keys(list(ids)))[0].rows)


def test_the_default_is_uniform_within_one_over_the_root_of_dim():
    emb = create(16)

    rows = np.asarray(dj.lookup(emb, np.arange(500))[0].rows)

    np.testing.assert_array_equal(rows, first(dj.initializers.uniform(), range(500)))
    assert 0.24 < np.abs(rows).max() <= 0.25


@pytest.mark.parametrize("name", INITIALIZERS)
def test_equal_seeds_repeat_and_other_seeds_differ(name):
    initializer, _ = INITIALIZERS[name]

    rows = [first(initializer, seed=s) for s in (5, 5, 6)]

    np.testing.assert_array_equal(rows[0], rows[1])
    assert name == "constant" or not np.array_equal(rows[0], rows[2])


def test_another_table_name_gives_other_rows():
    uniform = dj.initializers.uniform()

    assert not np.array_equal(first(uniform, name="a"), first(uniform, name="b"))


@pytest.mark.parametrize("seed", [-1, 2**64 - 1, 2**70 + 3])
def test_any_integer_is_a_seed_modulo_two_to_the_64(seed):
    uniform = dj.initializers.uniform()

    np.testing.assert_array_equal(first(uniform, seed=seed), first(uniform, seed=seed % 2**64))


def test_truncated_normal_stays_within_two_deviations():
    rows = first(dj.initializers.truncated_normal(0.5), range(2000))

    assert 0.99 < np.abs(rows).max() <= 1.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: dj.initializers.uniform(-1.0),
        lambda: dj.initializers.normal(-0.5),
        lambda: dj.initializers.truncated_normal(float("nan")),
        lambda: dj.initializers.constant("zero"),
        lambda: dj.initializers.constant(1e39),
    ],
)
def test_a_scale_that_is_no_scale_is_refused(make):
    with pytest.raises(dj.errors.ConfigError):
        make()
