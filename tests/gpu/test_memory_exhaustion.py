"""Memory that ends in the middle of a growth: an error with numbers, and a table as it was."""

import contextlib
import gc
import re

import jax.numpy as jnp
import numpy as np
import pytest

import dynemb_jax as dj
from tests.gpu.batches import Judged, make_step
from tests.oracle.row_init import Uniform
from tests.twin import contents, create, random_grads

DIM = 4
PLACE_MAPPED = ("cuMemCreate", "cuMemMap", "cuMemSetAccess")
# Rows, their stamps, erased rows, tags, entries: each is mapped apart, in this order.
BUFFERS = 5
# Buffers grow in pieces of 2 MiB. So many keys need one more in each of the five.
MANY = 1 << 21
KNOWN = np.arange(-500, 500)
INVALID_VALUE = 1  # CUDA_ERROR_INVALID_VALUE


@pytest.fixture
def native():
    """The CUDA module, in a process where no other table comes or goes meanwhile."""
    from dynemb_jax import _native_cuda

    gc.collect()
    gc.disable()
    yield _native_cuda
    gc.enable()


@contextlib.contextmanager
def failing(native, name, nth=1, **error):
    """The nth call of a driver function within fails, and it is reached."""
    native.fail_driver_call(name, nth, **error)
    try:
        yield
    finally:
        left = native.fail_driver_call(name, 0)
    assert left == 0, f"{name} was called {nth - left} times, not {nth}"


def grown(before, after):
    """How many more allocations and mappings there are."""
    assert after["allocated_bytes"] == after["mapped_bytes"]
    return tuple(after[what] - before[what] for what in ("allocations", "mappings"))


class Trained:
    """A small table that was trained, and what it holds."""

    def __init__(self, closing, **config):
        self.emb = closing(create(DIM, **config))
        acts, emb = dj.lookup(self.emb, KNOWN)
        self.emb = dj.apply_gradients(emb, acts, random_grads((KNOWN.size, DIM)))
        self.contents, self.rows = contents(self.emb), dj.get(self.emb, "items", KNOWN)

    def check_rows(self):
        """The rows that were trained are bit for bit what they were."""
        now = dj.get(self.emb, "items", KNOWN)
        assert now.found.all()
        np.testing.assert_array_equal(now.rows, self.rows.rows)
        np.testing.assert_array_equal(now.state["accumulator"], self.rows.state["accumulator"])

    def check_unchanged(self):
        """Nothing at all has changed."""
        assert contents(self.emb) == self.contents
        self.check_rows()

    def look_up_many(self):
        """Two million new keys."""
        acts, self.emb = dj.lookup(self.emb, jnp.arange(MANY, dtype=jnp.int32) + 1000)
        return acts

    def check_many(self):
        """They are there, with their first rows; so are the old ones."""
        stats = dj.stats(self.emb)["items"]
        assert stats.rows == stats.inserted == KNOWN.size + MANY
        some = np.unique(np.linspace(1000, 999 + MANY, 2000).astype(np.int64))
        got = dj.get(self.emb, "items", some)
        assert got.found.all()
        expected = Uniform()(0, "items", some, DIM).astype(np.float32)
        np.testing.assert_array_equal(got.rows, expected)
        self.check_rows()


# A large batch also needs room in which equal new keys meet; that comes first.
@pytest.mark.parametrize("nth", range(1, BUFFERS + 2))
@pytest.mark.parametrize("name", PLACE_MAPPED)
def test_a_lookup_that_cannot_grow_changes_nothing_and_succeeds_when_repeated(
    name, nth, native, closing
):
    start = native.driver_use()
    table = Trained(closing)
    before = native.driver_use()

    with failing(native, name, nth), pytest.raises(dj.errors.TableMemoryError, match=name):
        table.look_up_many()

    # Buffers that came earlier have grown; the one that failed has nothing left over.
    assert grown(before, native.driver_use()) == (nth - 1, nth - 1)
    table.check_unchanged()
    table.look_up_many()
    assert grown(before, native.driver_use()) == (BUFFERS + 1, BUFFERS + 1)
    table.check_many()
    dj.close(table.emb)
    assert native.driver_use() == start


@pytest.mark.parametrize("nth", range(1, BUFFERS + 1))
@pytest.mark.parametrize("name", ["cuMemAddressReserve", *PLACE_MAPPED])
def test_a_table_that_cannot_be_made_leaves_nothing_behind(name, nth, native, closing):
    start = native.driver_use()

    with failing(native, name, nth), pytest.raises(dj.errors.TableMemoryError, match=name):
        create(DIM, initial_rows=MANY)

    assert native.driver_use() == start
    table = Trained(closing, initial_rows=MANY)
    table.check_unchanged()


# A table made for no rows takes the addresses of rows, stamps and erased rows at its first lookup.
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_first_lookup_without_addresses_may_be_repeated(nth, native, closing):
    emb = closing(create(DIM))
    before = contents(emb)

    with (
        failing(native, "cuMemAddressReserve", nth),
        pytest.raises(dj.errors.TableMemoryError, match="cuMemAddressReserve"),
    ):
        dj.lookup(emb, KNOWN)

    assert contents(emb) == before
    acts, _ = dj.lookup(emb, KNOWN)
    expected = Uniform()(0, "items", KNOWN, DIM).astype(np.float32)
    np.testing.assert_array_equal(acts.rows, expected)


@pytest.mark.parametrize("nth", [1, 3, 5])
def test_an_assign_that_cannot_grow_changes_nothing_and_succeeds_when_repeated(
    nth, native, closing
):
    table = Trained(closing)
    ids = np.arange(MANY) + 1000
    rows = np.ones((MANY, DIM), np.float32)

    with failing(native, "cuMemMap", nth), pytest.raises(dj.errors.TableMemoryError):
        dj.assign(table.emb, "items", ids, rows)

    table.check_unchanged()
    table.emb = dj.assign(table.emb, "items", ids, rows)
    assert dj.stats(table.emb)["items"].rows == KNOWN.size + MANY
    assert (dj.get(table.emb, "items", ids[::997]).rows == 1).all()
    table.check_rows()


@pytest.mark.parametrize("name", PLACE_MAPPED)
def test_another_failure_of_the_driver_is_named(name, native, closing):
    table = Trained(closing)

    with (
        failing(native, name, 2, error=INVALID_VALUE),
        pytest.raises(dj.errors.NativeError, match=f"{name} failed: CUDA_ERROR_INVALID_VALUE"),
    ):
        table.look_up_many()

    table.check_unchanged()
    table.look_up_many()
    table.check_many()


@pytest.mark.parametrize("max_bytes", [None, 1 << 32])
def test_the_error_has_the_numbers(max_bytes, native, closing):
    table = Trained(closing, max_bytes=max_bytes)
    pieces = native.driver_use()

    with failing(native, "cuMemCreate", 3), pytest.raises(dj.errors.TableMemoryError) as info:
        table.look_up_many()

    text = str(info.value)
    numbers = re.search(
        r"table 'items' holds (\d+) bytes(?: of max_bytes=(\d+))? and needs (\d+) more, but "
        r"cuMemCreate failed with CUDA_ERROR_OUT_OF_MEMORY; (\d+) of (\d+) bytes are free, (\d+) "
        r"of them stay free for XLA, (\d+) are XLA's pool",
        text,
    )
    assert numbers, text
    held, budget, more, free, total, head_room, others = (int(n or -1) for n in numbers.groups())
    assert budget == (-1 if max_bytes is None else max_bytes)
    # Its five first pieces, and the rows of the growth that has just begun.
    assert 0 < held <= pieces["allocated_bytes"] + 2 * MANY * 2 * DIM * 4
    assert MANY * 8 <= more < MANY * 8 + (4 << 20)  # the stamps
    assert free + others + held == total
    assert 0 < head_room < free
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" in text
    assert "max_bytes" in text


def test_a_table_larger_than_the_card_is_refused_with_the_numbers(native):
    start = native.driver_use()

    with pytest.raises(dj.errors.TableMemoryError, match="the card has no room") as info:
        create(1 << 20, initial_rows=1 << 18)  # a TiB, without optimizer state

    assert f"needs {(1 << 41)} more" in str(info.value)  # with Adagrad's
    assert native.driver_use() == start


def test_a_failure_within_queued_steps_keeps_the_steps_before_it(native, closing):
    judged = Judged(DIM)
    closing(judged.emb)
    step = make_step()
    steps = [np.arange(1 << 14) + (i << 14) for i in range(40)]
    grads = random_grads((1 << 14, DIM))

    def enqueue_all(emb):
        for ids in steps:
            emb = step(emb, dj.keys(ids), grads)
        dj.stats(emb)

    with (
        failing(native, "cuMemCreate", 8),
        pytest.raises(dj.errors.TableMemoryError),
        dj.errors.typed(),
    ):
        enqueue_all(judged.emb)
    judged.emb = dj.resync(judged.emb)

    done = judged.stats().lookups
    assert 0 < done < len(steps)
    for ids in steps[:done]:
        judged.oracle.lookup(ids)
        judged.oracle.apply(ids, grads)
    judged.check()
    for ids in steps[done:]:
        judged.emb = step(judged.emb, dj.keys(ids), grads)
        judged.oracle.lookup(ids)
        judged.oracle.apply(ids, grads)
    judged.check()


def test_known_keys_are_served_where_there_is_no_memory_for_head_room(native, closing):
    emb = closing(create(DIM))
    known = jnp.arange(1 << 18, dtype=jnp.int32)
    _, emb = dj.lookup(emb, known)

    # A table that is short of room for the fifth time asks for more than it needs.
    with failing(native, "cuMemCreate"):
        for _ in range(6):
            _, emb = dj.lookup(emb, known)

    assert dj.stats(emb)["items"].rows == known.size


@pytest.mark.big
def test_closing_gives_the_memory_back_to_the_card(native):
    def use_two_gigabytes():
        emb = create(128, optimizer=dj.optimizers.sgd(0.1))
        for i in range(8):
            _, emb = dj.lookup(emb, jnp.arange(1 << 19, dtype=jnp.int32) + (i << 19))
        assert dj.stats(emb)["items"].rows == 1 << 22
        while_open = native.free_bytes(device)
        dj.close(emb)
        return while_open

    device = create(1).group.ordinal
    use_two_gigabytes()  # what XLA takes for these programs, it keeps

    before, mapped = native.free_bytes(device), native.driver_use()
    for _ in range(5):
        while_open = use_two_gigabytes()
        assert before - while_open > 2 << 30

    assert native.driver_use() == mapped
    # All pieces are back; the runtime keeps some memory of its own, for temporary blocks.
    assert before - native.free_bytes(device) <= 64 << 20
