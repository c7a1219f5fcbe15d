"""What the tests of this folder share: batches, a jitted step, and a table beside its judge."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import dynemb_jax as dj
from tests.oracle.large_batches import LargeBatchTable
from tests.plugins import INITIALIZERS, OPTIMIZERS
from tests.twin import COUNTERS, create

MILLION = 1 << 20


def whole_numbers(shape, seed=0, most=8):
    """float32 gradients that are whole numbers in [-most, most], made on the device.

    Sums of a million of them stay below 2**24: exact in float32, whatever the order.
    """
    assert most * MILLION < 1 << 24
    drawn = jax.random.randint(jax.random.key(seed), shape, -most, most + 1)
    return drawn.astype(jnp.float32)


def make_step():
    """A jitted train step of one feature that donates its state."""

    @functools.partial(jax.jit, donate_argnums=0)
    def step(emb, ids, grads):
        acts, emb = dj.lookup(emb, ids)
        return dj.apply_gradients(emb, acts, grads)

    return step


def on_each_platform(work):
    """Runs `work` on the CPU and on the GPU of this process; returns both results."""
    results = []
    for platform in ("cpu", jax.config.jax_default_device.platform):
        with jax.default_device(jax.devices(platform)[0]):
            results.append(work())
    return results


def assert_rows_close(actual, expected, *, rtol=1e-5, what="rows", terms=0.0):
    """float32 rows against float64 ones.

    A column in which large terms cancelled is as exact as the largest column of its row, to a few
    units in float32's last place (2**-24 = 6e-8), or as `terms`, where those were larger.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, (what, actual.shape, expected.shape)
    if expected.dtype.kind in "iu" or not expected.size:
        np.testing.assert_array_equal(actual, expected, err_msg=what)
        return
    scale = np.abs(expected).max(axis=-1, keepdims=True) if expected.ndim > 1 else 0.0
    bound = 2e-6 + rtol * np.abs(expected) + 5e-7 * np.maximum(scale, terms)
    wrong = np.argwhere(~(np.abs(actual - expected) <= bound))
    at = tuple(wrong[0]) if len(wrong) else None
    assert at is None, f"{what}: {len(wrong)} wrong, first {at}: {actual[at]}, not {expected[at]}"


def assert_states_close(actual, expected, *, rtol=1e-5):
    """assert_rows_close of every part of an optimizer's state."""
    for name, value in expected.items():
        # FTRL's z is what is left of terms as large as the gradients.
        terms = np.sqrt(expected["n"]).max(axis=-1, keepdims=True) if name == "z" else 0.0
        assert_rows_close(actual[name], np.asarray(value), rtol=rtol, what=name, terms=terms)


class Judged:
    """A table of one feature, and the dictionary that it must equal after many steps."""

    def __init__(
        self, dim, *, optimizer="sgd", initializer="uniform", combiner=None, seed=0, **config
    ):
        rule, reference = OPTIMIZERS[optimizer]
        first, first_reference = INITIALIZERS[initializer]
        self.emb = create(
            dim, optimizer=rule, initializer=first, combiner=combiner, seed=seed, **config
        )
        self.oracle = LargeBatchTable(
            "items", dim, optimizer=reference, first_rows=first_reference, seed=seed
        )

    def stats(self):
        """Statistics of the table."""
        return dj.stats(self.emb)["items"]

    def check(self, rtol=1e-5):
        """Every key's row and state, and every counter."""
        known = np.fromiter(self.oracle.rows, np.uint64, len(self.oracle.rows))
        got = dj.get(self.emb, "items", known)
        assert got.found.all()
        assert_rows_close(got.rows, self.oracle.values(known), rtol=rtol)
        expected = self.oracle.state(known)
        assert got.state.keys() == expected.keys()
        assert_states_close(got.state, expected, rtol=rtol)
        stats = self.stats()
        assert {c: getattr(stats, c) for c in COUNTERS} == {
            c: self.oracle.counters[c] for c in COUNTERS
        }
        assert stats.rows == known.size
