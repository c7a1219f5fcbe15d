"""Hundreds of steps enqueued without a look at the device: it grows, fails and counts alike."""

import jax
import numpy as np
import pytest

import dynemb_jax as dj
from tests.gpu.batches import Judged, make_step
from tests.twin import keys, random_grads

DIM = 8
STEPS = 300


def random_keys(count, seed):
    """Distinct keys of 64 bits."""
    drawn = np.random.default_rng(seed).integers(-(2**63), 2**63, 2 * count)
    return np.unique(drawn)[:count]


def batches(known, fresh, steps, *, seed=0, start=None):
    """`steps` batches of `fresh` keys each that no earlier one had, among `known` that one had."""
    rng = np.random.default_rng(seed)
    pool = random_keys(fresh * steps + 1, seed + 1)
    start = pool[:1] if start is None else start
    seen = np.concatenate([start, pool[1:]])
    for i in range(steps):
        old = rng.choice(seen[: start.size + i * fresh], known)
        new = seen[start.size + i * fresh :][:fresh]
        yield rng.permutation(np.concatenate([old, new]))


def run(step, judged, steps, seed=0):
    """Enqueues all steps, then lets the judge do them."""
    steps = list(steps)
    grads = [random_grads((ids.size, DIM), seed + i) for i, ids in enumerate(steps)]
    for ids, grad in zip(steps, grads, strict=True):
        judged.emb = step(judged.emb, dj.keys(ids), grad)
    for ids, grad in zip(steps, grads, strict=True):
        judged.oracle.lookup(ids)
        judged.oracle.apply(ids, grad)


@pytest.mark.parametrize("optimizer", ["adagrad", "adam_row"])
def test_a_table_that_grows_under_a_queue_keeps_every_key(optimizer, closing):
    judged = Judged(DIM, optimizer=optimizer)
    closing(judged.emb)

    run(make_step(), judged, batches(64, 448, STEPS))
    jax.block_until_ready(judged.emb)

    judged.check()
    stats = judged.stats()
    # From 31 slots to the 160,000 that so many keys ask for.
    assert stats.growths >= 12
    assert stats.rows <= stats.capacity
    assert stats.rows_copied == 0
    # A call is waited for once at most, its own count included.
    assert stats.waits <= 3 * STEPS


@pytest.mark.parametrize("doublings", range(1, 8))
def test_one_batch_may_double_a_queued_table_several_times(doublings, closing):
    judged = Judged(DIM)
    closing(judged.emb)
    step = make_step()
    few = list(batches(8, 8, 20, seed=doublings))
    many = random_keys(1000 << doublings, 99)

    run(step, judged, few)
    before = judged.stats().growths
    run(step, judged, [many, *few])

    judged.check()
    assert judged.stats().growths >= before + doublings


def test_known_keys_never_wait_where_there_is_room_for_a_queue(closing):
    ids = 1024
    known = random_keys(4096, 0)
    # Before the device has spoken, every id in flight might be a new key.
    judged = Judged(DIM, initial_rows=known.size + 80 * ids)
    closing(judged.emb)
    step = make_step()

    run(step, judged, np.split(known, 4))
    run(step, judged, batches(ids, 0, 200, start=known))

    judged.check()
    stats = judged.stats()
    assert (stats.waits, stats.growths) == (0, 0)


def test_known_keys_stop_waiting_once_their_table_has_head_room(closing):
    ids = 1024
    known = random_keys(4096, 0)
    judged = Judged(DIM)
    closing(judged.emb)
    step = make_step()
    run(step, judged, np.split(known, 4))
    run(step, judged, batches(ids, 0, 400, start=known))
    before = judged.stats().waits

    run(step, judged, batches(ids, 0, 200, start=known, seed=1))

    judged.check()
    # A queue that has never been so long yet may still ask for more room.
    assert judged.stats().waits - before <= 20


def test_few_new_keys_wait_seldom(closing):
    known = random_keys(4096, 0)
    judged = Judged(DIM, initial_rows=1 << 15)
    closing(judged.emb)
    step = make_step()
    run(step, judged, np.split(known, 4))

    run(step, judged, batches(960, 64, STEPS, start=known))

    judged.check()
    # Some calls before each piece of head-room, which lasts for some hundred steps.
    assert judged.stats().waits <= STEPS // 2


def test_a_step_with_an_old_state_ends_a_queue_where_it_stands(closing):
    judged = Judged(DIM, optimizer="adam")
    old = closing(judged.emb)

    # Not donated: the old state has to live.
    @jax.jit
    def step(emb, ids, grads):
        acts, emb = dj.lookup(emb, ids)
        return dj.apply_gradients(emb, acts, grads)

    steps = list(batches(32, 96, 60))
    run(step, judged, steps[:20])

    grads = random_grads((128, DIM))

    def go_on():
        emb = judged.emb
        wrong = step(old, dj.keys(steps[20]), grads)
        for ids in steps[20:40]:
            emb = step(emb, dj.keys(ids), grads)
        dj.stats(emb)
        # Where the host learns of it before it enqueues more, the error is this step's alone.
        jax.block_until_ready(wrong.token)

    with pytest.raises(dj.errors.StaleStateError, match="not the current"), dj.errors.typed():
        go_on()
    judged.emb = dj.resync(judged.emb)

    # It did nothing, and the others are done up to some point, or not at all.
    done = judged.stats().lookups
    assert 20 <= done <= 40
    for ids in steps[20:done]:
        judged.oracle.lookup(ids)
        judged.oracle.apply(ids, grads)
    judged.check()
    run(step, judged, steps[40:], seed=40)
    judged.check()


def test_wrong_lengths_end_a_queue_where_they_stand(closing):
    judged = Judged(DIM, combiner="sum")
    closing(judged.emb)
    step = make_step()
    steps = [ids.reshape(-1, 4) for ids in batches(32, 96, 40)]

    grads = [random_grads((ids.shape[0], DIM), i) for i, ids in enumerate(steps)]

    def enqueue_all(emb):
        for i, (ids, grad) in enumerate(zip(steps, grads, strict=True)):
            lengths = np.full(ids.shape[0], -1 if i == 25 else 4, np.int32)
            emb = step(emb, dj.Padded(dj.keys(ids), lengths=lengths), grad)
        dj.stats(emb)

    with pytest.raises(dj.errors.InputError, match="lengths"), dj.errors.typed():
        enqueue_all(judged.emb)
    judged.emb = dj.resync(judged.emb)

    for ids, grad in zip(steps[:25], grads, strict=False):
        judged.oracle.lookup(ids)
        judged.oracle.apply(ids, np.repeat(grad, 4, axis=0))
    judged.check()


def test_erasing_within_a_queue_forgets_and_starts_afresh(closing):
    judged = Judged(DIM, optimizer="adagrad")
    closing(judged.emb)
    step = make_step()
    erase = jax.jit(lambda emb, ids: dj.erase(emb, "items", ids), donate_argnums=0)
    steps = list(batches(32, 96, 60))
    grads = random_grads((128, DIM))

    for i, ids in enumerate(steps):
        judged.emb = step(judged.emb, keys(ids), grads)
        if i % 3 == 2:
            judged.emb = erase(judged.emb, keys(steps[i - 1]))
    for i, ids in enumerate(steps):
        judged.oracle.lookup(ids)
        judged.oracle.apply(ids, grads)
        if i % 3 == 2:
            judged.oracle.erase(np.unique(steps[i - 1]))

    judged.check()
    assert not dj.contains(judged.emb, "items", np.setdiff1d(steps[-2], steps[-1])).any()


def test_a_full_table_under_a_queue_never_waits_and_loses_no_count(closing):
    eviction = dj.eviction.lru(max_rows=2000)
    table = dj.TableConfig("items", DIM, eviction=eviction, initial_rows=2000)
    emb = dj.create(dj.FeatureConfig(table), max_outstanding=1)
    closing(emb)
    step, rng = make_step(), np.random.default_rng(0)
    drawn = [keys(rng.zipf(1.1, 512) % 50_000 + 100 * i) for i in range(STEPS)]
    grads = random_grads((512, DIM))

    for ids in drawn:
        emb = step(emb, ids, grads)

    stats = dj.stats(emb)["items"]
    assert stats.rows == 2000
    assert stats.ids == STEPS * 512 == stats.hits + stats.inserted + sum(stats.refused.values())
    assert stats.inserted - stats.evicted == 2000
    assert stats.waits <= 4  # until it is full
