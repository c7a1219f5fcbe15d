"""What may differ between two runs of one program, and what may not: order is rounding's alone."""

import dataclasses

import jax
import numpy as np
import pytest

import dynemb_jax as dj
from tests.gpu.batches import (
    assert_rows_close,
    assert_states_close,
    make_step,
    on_each_platform,
)
from tests.plugins import INITIALIZERS, OPTIMIZERS
from tests.twin import COUNTERS, contents, create, random_grads

DIM, BATCH, STEPS = 8, 256, 1000
SIZES = ("rows", "capacity", "load", "index_bytes", "row_bytes", "growths", "rows_copied")


def batches(whole):
    """A thousand batches with duplicates over a vocabulary that keeps widening."""
    rng = np.random.default_rng(0)
    for i in range(STEPS):
        ids = rng.zipf(1.3, BATCH) % (100 + 5 * i) * 2**33 - 7
        grads = rng.integers(-8, 9, (BATCH, DIM)) if whole else rng.normal(size=(BATCH, DIM))
        yield ids, grads.astype(np.float32)


UNIVERSE = np.arange(100 + 5 * STEPS) * 2**33 - 7


def run(rule, *, whole=False, waits=True):
    """A thousand steps in a fresh table; returns its statistics and all that get tells."""
    emb = create(DIM, optimizer=rule)
    step = make_step()
    for ids, grads in batches(whole):
        emb = step(emb, dj.keys(ids), grads)
        if waits:
            jax.block_until_ready(emb)
    stats, held = dj.stats(emb)["items"], contents(emb)
    rows = dj.get(emb, "items", UNIVERSE)
    dj.close(emb)
    return stats, held, rows


def assert_same_keys_and_counts(a, b):
    np.testing.assert_array_equal(a.found, b.found)
    for name, value in a.state.items():
        if value.dtype.kind == "i":
            np.testing.assert_array_equal(value, b.state[name], err_msg=name)


def test_two_runs_agree_in_every_statistic_and_to_rounding_in_every_row():
    rule = OPTIMIZERS["adam_row"][0]

    (stats, _, a), (again, _, b) = run(rule), run(rule)

    assert dataclasses.asdict(stats) == dataclasses.asdict(again)
    assert 0 < stats.rows == a.found.sum() < UNIVERSE.size
    assert_same_keys_and_counts(a, b)
    # A step moves a row by at most its rate, 0.01, whose relative error is that of a sum: 1e-6 of
    # it, a thousand times.
    np.testing.assert_allclose(a.rows, b.rows, rtol=1e-5, atol=1e-5)


def test_a_queue_only_decides_when_there_is_room():
    rule = OPTIMIZERS["adagrad"][0]

    (stats, held, a), (queued, held_queued, b) = run(rule), run(rule, waits=False)

    assert held == held_queued
    assert queued.rows_copied == 0
    assert queued.capacity >= queued.rows == stats.rows
    assert_same_keys_and_counts(a, b)
    assert_rows_close(a.rows, b.rows.astype(np.float64))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_where_sums_are_exact_two_runs_agree_closely(optimizer):
    rule = OPTIMIZERS[optimizer][0]

    (_, held, a), (_, held_again, b) = run(rule, whole=True), run(rule, whole=True, waits=False)

    assert held == held_again
    assert_same_keys_and_counts(a, b)
    # Kernels that take different ways through a row may fuse its products differently.
    assert_rows_close(a.rows, b.rows.astype(np.float64))
    floats = {n: v.astype(np.float64) for n, v in b.state.items() if v.dtype.kind == "f"}
    assert_states_close(a.state, floats)


def test_where_every_operation_is_exact_two_runs_have_the_same_bits():
    rule = dj.optimizers.sgd(0.125)

    (_, held, a), (_, held_again, b) = run(rule, whole=True), run(rule, whole=True, waits=False)

    assert held == held_again
    np.testing.assert_array_equal(a.rows.view(np.int32), b.rows.view(np.int32))


@pytest.mark.parametrize("initializer", INITIALIZERS)
def test_first_rows_are_the_same_bits_as_on_the_cpu(initializer):
    ids = np.random.default_rng(0).integers(-(2**63), 2**63, 5000)

    def first_rows():
        emb = create(37, initializer=INITIALIZERS[initializer][0], seed=5)
        acts, emb = dj.lookup(emb, ids)
        rows = np.asarray(acts.rows), dj.get(emb, "items", ids).rows
        dj.close(emb)
        return rows

    (cpu, cpu_got), (gpu, gpu_got) = on_each_platform(first_rows)

    np.testing.assert_array_equal(cpu.view(np.int32), gpu.view(np.int32))
    np.testing.assert_array_equal(cpu_got.view(np.int32), gpu_got.view(np.int32))


def test_missing_rows_that_are_first_rows_are_the_same_bits_as_on_the_cpu():
    ids = np.random.default_rng(0).integers(-(2**63), 2**63, 500)

    def missing_rows():
        emb = create(37, initializer=dj.initializers.normal(), missing_row="initializer")
        acts, _ = dj.lookup(emb, ids, train=False)
        rows = np.asarray(acts.rows), dj.get(emb, "items", ids).rows
        dj.close(emb)
        return rows

    (cpu, cpu_got), (gpu, gpu_got) = on_each_platform(missing_rows)

    np.testing.assert_array_equal(cpu.view(np.int32), gpu.view(np.int32))
    np.testing.assert_array_equal(cpu_got.view(np.int32), gpu_got.view(np.int32))


@pytest.mark.parametrize("max_load", [0.1, 0.5, 0.85])
def test_an_index_grows_as_on_the_cpu(max_load):
    rng = np.random.default_rng(0)
    # Four calls: a table that is short of room more often than that gets head-room on a GPU.
    fresh = [rng.integers(-(2**63), 2**63, n) for n in (100, 1500, 6000, 25_000)]

    def grow():
        emb = create(4, max_load=max_load)
        sizes = []
        for ids in fresh:
            _, emb = dj.lookup(emb, np.concatenate([ids, ids[: ids.size // 2], fresh[0]]))
            stats = dj.stats(emb)["items"]
            sizes.append({name: getattr(stats, name) for name in (*SIZES, "hits", "inserted")})
        dj.close(emb)
        return sizes

    cpu, gpu = on_each_platform(grow)

    assert cpu == gpu


# Doubles and halves are exact, so a product fused into a subtraction rounds like two operations.
@pytest.mark.parametrize("rate", [0.125, 1.0])
@pytest.mark.parametrize("dim", [1, 4, 31, 64, 130])
def test_sgd_without_duplicates_gives_the_same_bits_as_on_the_cpu(dim, rate):
    rng = np.random.default_rng(dim)
    vocabulary = rng.integers(-(2**63), 2**63, 3000)
    steps = [rng.permutation(vocabulary)[:400] for _ in range(40)]

    def train():
        emb = create(dim, optimizer=dj.optimizers.sgd(rate), initializer=dj.initializers.normal())
        step = make_step()
        for i, ids in enumerate(steps):
            emb = step(emb, dj.keys(ids), random_grads((400, dim), i))
        got, stats = dj.get(emb, "items", vocabulary), dj.stats(emb)["items"]
        dj.close(emb)
        return got, {name: getattr(stats, name) for name in (*COUNTERS, "rows", "refused")}

    (cpu, cpu_counts), (gpu, gpu_counts) = on_each_platform(train)

    np.testing.assert_array_equal(cpu.found, gpu.found)
    np.testing.assert_array_equal(cpu.rows.view(np.int32), gpu.rows.view(np.int32))
    assert cpu_counts == gpu_counts
