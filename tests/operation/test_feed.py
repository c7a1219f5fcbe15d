"""Feeding: batches come in order, errors in their place, and the thread ends with its use."""

import gc
import itertools
import queue
import subprocess
import sys
import threading
import traceback

import jax
import numpy as np
import pytest

import dynemb_jax as dj

PATIENCE = 60  # seconds after which a thread that hangs fails the test


def running():
    return [thread for thread in threading.enumerate() if thread.name == "dynemb_jax.feed"]


@pytest.fixture(autouse=True)
def _threads_end():
    """Every test leaves no thread behind, whichever way it ends its feed."""
    yield
    gc.collect()
    for thread in running():
        thread.join(PATIENCE)
    assert not running()


class Gate:
    """A source that says when it is entered, and goes on when it is told to."""

    def __init__(self):
        self.entered, self.opened = threading.Event(), threading.Event()
        self.given, self.left = 0, threading.Event()

    def batches(self):
        try:
            while True:
                self.entered.set()
                assert self.opened.wait(PATIENCE)
                self.given += 1
                yield np.float32(self.given)
        finally:
            self.left.set()


@pytest.mark.parametrize("depth", [1, 2, 5, 100])
def test_batches_come_in_order_and_all_of_them(depth):
    batches = [{"x": np.full(3, i, np.float32)} for i in range(50)]

    out = list(dj.feed(batches, depth))

    assert [int(batch["x"][0]) for batch in out] == list(range(50))
    assert all(isinstance(batch["x"], jax.Array) for batch in out)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_more_than_depth_batches_are_taken_ahead(depth):
    asked, beyond = itertools.count(), []
    seen = 0

    def source():
        for taken in range(1, 40):
            if taken > seen + depth:
                beyond.append((taken, seen))
            yield np.float32(taken)

    feed = dj.feed(source(), depth)
    for _ in range(39):
        seen = next(asked) + 1  # before the call: it makes room for one more
        next(feed)
    feed.close()

    assert not beyond


@pytest.mark.parametrize("depth", [1, 3])
def test_depth_batches_are_taken_before_the_first_is_asked_for(depth):
    taken = queue.SimpleQueue()

    def source():
        for i in itertools.count():
            taken.put(i)
            yield np.float32(i)

    with dj.feed(source(), depth):
        assert [taken.get(timeout=PATIENCE) for _ in range(depth)] == list(range(depth))


def test_an_error_comes_in_its_place_with_its_type_and_traceback():
    class OwnError(Exception):
        pass

    def failing_source():
        yield np.float32(1)
        yield np.float32(2)
        raise OwnError("broken file")

    feed, out = dj.feed(failing_source(), 5), []
    with pytest.raises(OwnError, match="broken file") as caught:
        out.extend(map(int, feed))

    assert out == [1, 2]
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-1] == "failing_source"
    assert list(feed) == []


def test_a_batch_that_jax_refuses_is_an_error_in_its_place():
    feed = dj.feed([{"x": np.float32(1)}, {"x": "seven"}])

    assert next(feed)["x"] == 1
    with pytest.raises(TypeError):
        next(feed)


def test_an_exhausted_feed_stays_exhausted():
    feed = dj.feed([np.float32(1)])

    assert len(list(feed)) == 1
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(feed)


def test_leaving_the_loop_ends_the_thread():
    for batch in dj.feed(np.float32(i) for i in itertools.count()):
        if batch == 3:
            break

    for thread in running():
        thread.join(PATIENCE)
    assert not running()


def test_an_error_in_the_loop_ends_the_thread():
    def loop():
        for batch in dj.feed(np.float32(i) for i in itertools.count()):
            1 // int(batch)

    with pytest.raises(ZeroDivisionError):
        loop()

    for thread in running():
        thread.join(PATIENCE)
    assert not running()


def test_a_feed_in_a_garbage_cycle_ends_with_it():
    feed = dj.feed(np.float32(i) for i in itertools.count())
    cycle = [feed]
    cycle.append(cycle)

    del feed, cycle
    gc.collect()

    for thread in running():
        thread.join(PATIENCE)
    assert not running()


@pytest.mark.parametrize("taken", [0, 1, 4])
def test_close_ends_thread_and_feed_and_lets_the_source_clean_up(taken):
    cleaned = []

    def source():
        try:
            for i in itertools.count():
                yield np.float32(i)
        finally:
            cleaned.append(True)

    feed = dj.feed(source())
    for _ in range(taken):
        next(feed)

    assert feed.close(wait_seconds=PATIENCE)
    assert not running()
    assert cleaned == [True]
    assert list(feed) == []
    assert feed.close()


def test_a_with_block_ends_the_thread():
    with dj.feed(np.float32(i) for i in itertools.count()) as feed:
        assert next(feed) == 0

    assert not running()
    assert list(feed) == []


def test_close_need_not_wait_for_a_source_that_blocks():
    gate = Gate()
    feed = dj.feed(gate.batches())
    assert gate.entered.wait(PATIENCE)

    assert not feed.close(wait_seconds=0)
    assert list(feed) == []
    gate.opened.set()

    assert gate.left.wait(PATIENCE)
    assert gate.given == 1  # the batch it was busy with, and no other


def test_a_dropped_feed_ends_when_its_blocked_source_gives():
    gate = Gate()
    feed = dj.feed(gate.batches())
    assert gate.entered.wait(PATIENCE)

    del feed
    gate.opened.set()

    assert gate.left.wait(PATIENCE)
    assert gate.given == 1


def test_close_wakes_a_consumer_that_waits():
    gate, out = Gate(), queue.SimpleQueue()
    feed = dj.feed(gate.batches())
    consumer = threading.Thread(target=lambda: out.put(list(feed)))
    consumer.start()

    feed.close(wait_seconds=0)
    consumer.join(PATIENCE)
    gate.opened.set()

    assert out.get(timeout=PATIENCE) == []


def test_close_wakes_a_consumer_while_it_waits_for_the_source_itself():
    gate, out = Gate(), queue.SimpleQueue()
    feed = dj.feed(gate.batches())
    assert gate.entered.wait(PATIENCE)
    consumer = threading.Thread(target=lambda: out.put(list(feed)))
    closer = threading.Thread(target=feed.close, kwargs={"wait_seconds": PATIENCE})
    consumer.start()
    closer.start()

    assert out.get(timeout=PATIENCE / 2) == []  # the source still blocks

    assert closer.is_alive()
    gate.opened.set()
    closer.join(PATIENCE)
    consumer.join(PATIENCE)


@pytest.mark.parametrize("depth", [0, -1, 1.5, None, True, "2"])
def test_a_depth_that_is_none_is_refused(depth):
    with pytest.raises(dj.errors.ConfigError, match=r"depth must be .*got .*write depth=2"):
        dj.feed([], depth)


@pytest.mark.parametrize("device", ["cpu", 0, [None]])
def test_a_device_that_is_none_is_refused(device):
    with pytest.raises(dj.errors.ConfigError, match=r"device must be .*got .*write"):
        dj.feed([], device=device)


def test_what_cannot_be_iterated_over_is_refused():
    with pytest.raises(dj.errors.InputError, match="got int; pass a generator"):
        dj.feed(7)


@pytest.mark.parametrize(
    ("source", "patience"),
    [("map(np.float32, itertools.count())", PATIENCE), ("iter(queue.Queue().get, None)", 0)],
    ids=["waits for room", "blocks for ever"],
)
def test_an_interpreter_with_a_running_feed_exits_quietly(source, patience):
    code = f"""
import itertools, queue, sys
import numpy as np
import dynemb_jax as dj
sys.modules["dynemb_jax.feed"]._WAIT_SECONDS = {patience}
feed = dj.feed({source})
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
