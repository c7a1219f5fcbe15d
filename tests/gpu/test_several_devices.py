"""Tables of several cards in one process: each lives on the one it was made on."""

import gc
import threading

import jax
import numpy as np
import pytest

import dynemb_jax as dj
from tests.gpu.batches import Judged, make_step
from tests.twin import create, random_grads

DIM, BATCH = 8, 512


@pytest.fixture
def devices(platform):
    """The first two cards."""
    found = jax.devices(platform)
    if len(found) < 2:
        pytest.skip(f"needs two devices, {len(found)} are visible")
    return found[:2]


def batch(seed, i):
    return np.random.default_rng((seed, i)).integers(0, 500 + 100 * i, BATCH) + 2**40 * seed


def train(judged, step, seed, steps):
    for i in steps:
        judged.emb = step(judged.emb, dj.keys(batch(seed, i)), random_grads((BATCH, DIM), i))


def judge(judged, seed, steps):
    for i in steps:
        judged.oracle.lookup(batch(seed, i))
        judged.oracle.apply(batch(seed, i), random_grads((BATCH, DIM), i))
    judged.check()


def test_a_table_of_the_second_device_lives_and_grows_there(devices, closing):
    with jax.default_device(devices[1]):
        judged = Judged(DIM, optimizer="adam_row")
    closing(judged.emb)

    # Its state says where it lives, whatever the default is by now.
    train(judged, make_step(), 1, range(100))

    assert judged.emb.token.devices() == {devices[1]}
    judge(judged, 1, range(100))
    assert judged.stats().growths >= 5


def test_tables_of_two_devices_train_at_once(devices, closing):
    tables = []
    for device in devices:
        with jax.default_device(device):
            tables.append(Judged(DIM, optimizer="adagrad"))
        closing(tables[-1].emb)
    steps = [make_step(), make_step()]

    for i in range(100):
        for seed, (judged, step) in enumerate(zip(tables, steps, strict=True)):
            train(judged, step, seed, [i])

    for seed, judged in enumerate(tables):
        judge(judged, seed, range(100))


def test_memory_is_taken_from_the_tables_device(devices, closing):
    from dynemb_jax import _native_cuda

    ordinals = [device.local_hardware_id for device in devices]
    before = _native_cuda.free_bytes(ordinals[1])
    with jax.default_device(devices[1]):
        emb = closing(create(128, optimizer=dj.optimizers.sgd(0.1), initial_rows=1 << 23))

    assert emb.group.ordinal == ordinals[1]
    # Four GiB of rows; others may come and go on the card meanwhile, but hardly so much.
    assert before - _native_cuda.free_bytes(ordinals[1]) > 2 << 30


def test_closing_one_devices_table_leaves_the_others(devices, closing):
    tables = []
    for device in devices:
        with jax.default_device(device):
            tables.append(Judged(DIM))
        closing(tables[-1].emb)
    step = make_step()
    for seed, judged in enumerate(tables):
        train(judged, step, seed, range(10))

    with jax.default_device(devices[0]):
        dj.close(tables[1].emb)
        del tables[1]
        gc.collect()
        train(tables[0], step, 0, range(10, 20))

    judge(tables[0], 0, range(20))


def test_host_calls_of_another_thread_reach_the_tables_device(devices, closing):
    with jax.default_device(devices[1]):
        emb = closing(create(DIM, initializer=dj.initializers.constant(2.0)))
    _, emb = dj.lookup(emb, np.arange(100))
    seen = []

    def look():
        seen.append(dj.stats(emb)["items"].rows)
        seen.append(dj.get(emb, "items", np.arange(200)).found.sum())
        seen.append(dj.stats(dj.erase(emb, "items", np.arange(50)))["items"].rows)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()

    assert seen == [100, 100, 50]


def test_a_state_moved_to_another_device_is_refused(devices, closing):
    with jax.default_device(devices[0]):
        emb = closing(create(DIM))
    _, emb = dj.lookup(emb, np.arange(10))

    with pytest.raises(dj.errors.WrongDeviceError, match="device"):
        dj.lookup(jax.device_put(emb, devices[1]), np.arange(10))

    _, emb = dj.lookup(emb, np.arange(10))
    assert dj.stats(emb)["items"].rows == 10
