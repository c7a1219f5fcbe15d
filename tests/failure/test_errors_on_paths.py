"""One error, one class, whatever way JAX took to run the program that raised it."""

import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.twin import create

BATCH = 512
GOOD = np.arange(BATCH, dtype=np.int32) % 7
NEW = np.arange(BATCH, dtype=np.int32) + 10**6
BIG = np.ones((1500, 1500), np.float32)


@dataclass
class Mistake:
    """A good call's state and ids, and how to make them bad. Shapes never differ."""

    error: type
    emb: Any
    spoil: Any
    bad_ids: np.ndarray


def stale():
    emb = create(4)

    def spoil(emb):
        dj.lookup(emb, np.array([3]))
        return emb

    return Mistake(dj.errors.StaleStateError, emb, spoil, NEW)


def full():
    # The index alone may take the budget's larger part; one batch of 512 x 256 floats never fits.
    emb = create(256, max_bytes=1 << 18, initial_rows=0)
    return Mistake(dj.errors.TableFullError, emb, lambda emb: emb, NEW)


def closed():
    def spoil(emb):
        dj.close(emb)
        return emb

    return Mistake(dj.errors.ClosedError, create(4), spoil, GOOD)


MISTAKES = {"stale": stale, "full": full, "closed": closed}


def lookup(emb, ids):
    acts, emb = dj.lookup(emb, ids)
    return acts.rows, emb


def heavy_lookup(emb, ids, x):
    """Enough arithmetic for the program to be dispatched and awaited apart."""
    rows, emb = lookup(emb, ids)
    return rows, emb, x @ x @ x


def scanned(emb, ids):
    def body(emb, _):
        rows, emb = lookup(emb, ids)
        return emb, rows

    emb, rows = jax.lax.scan(body, emb, None, length=2)
    return rows, emb


def finish(results, emb):
    """Waits for a program, and for what its tables have to say: a GPU tells later."""
    jax.block_until_ready(results)
    dj.stats(emb)


def eager(m):
    return lambda: dj.lookup(m.spoil(m.emb), m.bad_ids)


def first_call(m):
    f, emb = jax.jit(lookup), m.spoil(m.emb)
    return lambda: finish(f(emb, m.bad_ids), m.emb)


def fast_path(m):
    f, emb = jax.jit(lookup), m.emb
    for _ in range(3):
        _, emb = f(emb, GOOD)
    emb = m.spoil(emb)
    return lambda: finish(f(emb, m.bad_ids), m.emb)


def asynchronous(m):
    f, emb, x = jax.jit(heavy_lookup), m.emb, jnp.asarray(BIG)
    for _ in range(2):
        _, emb, _ = f(emb, GOOD, x)
    emb = m.spoil(jax.block_until_ready(emb))
    return lambda: finish(f(emb, m.bad_ids, x), m.emb)


def in_scan(m):
    f, emb = jax.jit(scanned), m.spoil(m.emb)
    return lambda: finish(f(emb, m.bad_ids), m.emb)


JAX_PATHS = {
    "first call": first_call,
    "fast path": fast_path,
    "asynchronous": asynchronous,
    "scan": in_scan,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_eager_call_raises_our_class(mistake):
    m = MISTAKES[mistake]()
    call = eager(m)

    with pytest.raises(m.error) as info:
        call()

    assert "dynemb[" not in str(info.value)


@pytest.mark.parametrize("path", JAX_PATHS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_typed_gives_our_class_on_every_path(mistake, path):
    m = MISTAKES[mistake]()
    call = JAX_PATHS[path](m)

    with pytest.raises(m.error), dj.errors.typed():
        call()


@pytest.mark.parametrize("path", JAX_PATHS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_from_exception_gives_our_class_on_every_path(mistake, path):
    m = MISTAKES[mistake]()
    call = JAX_PATHS[path](m)

    with pytest.raises((ValueError, RuntimeError)) as info:
        call()

    # What is known while tracing is ours from the start; what the engine says carries its code.
    assert isinstance(info.value, m.error) or re.search(r"dynemb\[[A-Z_]+\]: ", str(info.value))
    assert isinstance(dj.errors.from_exception(info.value), m.error)


@pytest.mark.parametrize("mistake", ["stale", "full"])
def test_after_an_error_resync_continues_with_nothing_lost(mistake):
    m = MISTAKES[mistake]()
    f, emb = jax.jit(lookup), m.emb
    rows, emb = f(emb, GOOD)
    bad = m.spoil(emb)

    with pytest.raises(m.error), dj.errors.typed():
        finish(f(bad, m.bad_ids), m.emb)
    again, _ = f(dj.resync(emb), GOOD)

    np.testing.assert_array_equal(again, rows)


def test_a_poisoned_state_is_our_error_at_the_next_call():
    m = full()
    f, x = jax.jit(heavy_lookup), jnp.asarray(BIG)
    _, emb, _ = f(m.emb, GOOD, x)
    jax.block_until_ready(emb)

    def fail_then_read():
        _, poisoned, _ = f(emb, NEW, x)
        dj.stats(poisoned)

    # An asynchronous program hands out a state that will never be; using it reports the cause.
    with pytest.raises(dj.errors.TableFullError), dj.errors.typed():
        fail_then_read()

    acts, _ = dj.lookup(dj.resync(emb), GOOD)
    assert acts.rows.shape == (BATCH, 256)


def test_typed_decorates_a_jitted_function():
    @dj.errors.typed()
    @jax.jit
    def step(emb, ids):
        return lookup(emb, ids)

    m = stale()
    bad = m.spoil(m.emb)

    with pytest.raises(dj.errors.StaleStateError):
        finish(step(bad, NEW), m.emb)


def test_donated_state_of_a_failed_call_is_revived_by_resync():
    m = full()
    f = jax.jit(lookup, donate_argnums=0)
    rows, emb = f(m.emb, GOOD)

    with pytest.raises(dj.errors.TableFullError), dj.errors.typed():
        jax.block_until_ready(f(emb, NEW))
    again, _ = f(dj.resync(emb), GOOD)

    np.testing.assert_array_equal(again, rows)


def test_steps_before_a_failing_one_in_a_scan_are_done():
    emb = create(4)
    ids = np.arange(6, dtype=np.int32).reshape(3, 2)

    @jax.jit
    def run(emb, ids):
        def body(carry, batch):
            fresh, old = carry
            _, new = lookup(fresh, batch[0])
            # The third turn goes on with the state of the first.
            return (jax.tree.map(lambda a, b: jnp.where(batch[1], a, b), old, new), old), None

        return jax.lax.scan(body, (emb, emb), (ids, np.array([False, True, False])))

    with pytest.raises(dj.errors.StaleStateError), dj.errors.typed():
        finish(run(emb, ids), emb)

    np.testing.assert_array_equal(
        dj.contains(dj.resync(emb), "items", np.arange(6)), [True] * 4 + [False] * 2
    )
