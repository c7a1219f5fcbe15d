"""Batches put on the device by a thread of their own, ahead of the step that uses them."""

import atexit
import queue
import threading
import weakref
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

import jax
import numpy as np

from dynemb_jax.errors import ConfigError, InputError
from dynemb_jax.inputs import Padded, Ragged, clipped_int32
from dynemb_jax.keys import keys

_WAIT_SECONDS = 5.0


class _Worker(threading.Thread):
    """Takes batches while there is a permit for one, and lays what came of them in ``ready``.

    It knows nothing of its Feed, so that a Feed that nobody holds is collected and stops it.
    """

    def __init__(self, source: Iterator[Any], depth: int, device: Any):
        # A daemon: a source that never returns must not keep the interpreter from ending.
        super().__init__(name="dynemb_jax.feed", daemon=True)
        # (batch, None), or at last (None, what was raised): StopIteration is the plain end.
        self.ready: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self.stopped = False
        self._source: Iterator[Any] | None = source
        self._device = device
        # JAX keeps these settings per thread; the caller's are meant.
        self._x64: bool = jax.config.jax_enable_x64  # pyright: ignore
        self._default_device = jax.config.jax_default_device  # pyright: ignore
        self._permits: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(depth):
            self.permit()

    def permit(self) -> None:
        """Allows one more batch to be taken."""
        self._permits.put(None)

    def stop(self) -> None:
        """Ends the thread at its next breath; waits for nothing.

        Finalizers call it, at any place of any thread, this one included: it may take no lock,
        which leaves a plain store and the put of a SimpleQueue.
        """
        self.stopped = True
        self.permit()

    def run(self) -> None:
        """The thread."""
        with jax.enable_x64(self._x64), jax.default_device(self._default_device):
            while self._take():
                pass
        self._source = None  # before the thread counts as ended: a generator cleans up here

    def _take(self) -> bool:
        # A function of its own: no batch stays in a local while the next one is waited for.
        self._permits.get()
        if self.stopped or self._source is None:
            return False
        try:
            batch = next(self._source)
            if self.stopped:
                return False
            self.ready.put((_on_device(batch, self._device), None))
        except BaseException as error:
            self.ready.put((None, error))
            return False
        return True


class Feed(Iterator[Any]):
    """The iterator that :func:`feed` returns."""

    def __init__(self, source: Iterator[Any], depth: int, device: Any):
        """Starts the thread."""
        self._worker = _Worker(source, depth, device)
        weakref.finalize(self, self._worker.stop).atexit = False  # _end_all does that
        self._worker.start()

    def __next__(self) -> Any:
        """The next batch, or what the iterator raised in its place."""
        if self._worker.stopped:
            raise StopIteration
        batch, error = self._worker.ready.get()
        if error is None:
            self._worker.permit()
            return batch
        self._worker.ready.put((None, StopIteration()))  # for whoever asks again
        try:
            raise error
        finally:
            del error  # its traceback holds this frame

    def close(self, *, wait_seconds: float = _WAIT_SECONDS) -> bool:
        """Ends the thread and drops the batches that are ready; calling it again does no harm.

        Args:
            wait_seconds: how long to wait for a batch that the iterator is busy with. Nothing can
                interrupt it there; when it comes, it is dropped and the thread ends.

        Returns:
            Whether the thread has ended, so that the iterator is no longer in use.
        """
        self._worker.stop()
        # For another thread that waits in next(): now, since the iterator may be busy for long.
        self._worker.ready.put((None, StopIteration()))
        self._worker.join(wait_seconds)
        while not self._worker.ready.empty():
            self._worker.ready.get()
        self._worker.ready.put((None, StopIteration()))
        return not self._worker.is_alive()

    def __enter__(self) -> "Feed":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def feed(
    iterator: Iterable[Any],
    depth: int = 2,
    *,
    device: jax.Device | jax.sharding.Sharding | None = None,  # pyright: ignore
) -> Feed:
    """Puts batches on the device ahead of the step that uses them.

    A thread takes batches from ``iterator``, copies them and sends them to the device; the loop
    gets them in order. What ``iterator`` raises comes out of the loop in its place, behind the
    batches before it. The thread ends with the iterator, when the loop is left and nothing holds
    the feed any more, by ``close()`` and at the end of a ``with`` block; ``iterator`` itself is
    not closed, and the batches taken ahead of the loop are gone.

    A batch is any pytree. Its leaves arrive as JAX arrays; Keys, Padded and Ragged stay such.
    **With x64 off, which cannot hold 64-bit integers, each NumPy array of int64 or uint64 becomes**
    :class:`Keys`, by its type alone and whatever its values: that is right for ids. Labels,
    counts and other numbers to compute with are no ids: give them as int32 or float32 (as Keys,
    arithmetic refuses them). The exceptions: integer ``lengths``, ``row_splits`` and ``weights`` of
    Padded and Ragged become int32, int32 and float32, and a single 64-bit integer (shape ``()``)
    becomes a 32-bit one. With x64 on, integers stay what they are. Floats of 64 bits become what
    JAX makes of them.

    Args:
        iterator: of batches. It runs in the thread: nothing that it uses, a random generator say,
            may be used outside meanwhile. It may fill the same buffers again for each batch.
        depth: batches that are ready or being made, at most, beside the one in use.
        device: where to, as in ``jax.device_put``; by default where JAX puts new arrays.

    Returns:
        An iterator over the batches, which is its own context manager.

    Raises:
        ConfigError: a depth below 1, or a device that is none.
        InputError: nothing to iterate over. In the loop: a single integer beyond 32 bits.

    Example:
        >>> with dj.feed(batches) as ready:           # doctest: +SKIP
        ...     for ids, labels in ready:
        ...         emb, loss = train_step(emb, ids, labels)
    """
    if isinstance(depth, bool) or not isinstance(depth, int | np.integer) or depth < 1:
        raise ConfigError(
            f"depth must be an integer of at least 1, got {depth!r}; write depth=2 to have the "
            "next two batches made while one is in use."
        )
    if not isinstance(device, jax.Device | jax.sharding.Sharding | None):
        raise ConfigError(
            f"device must be a jax.Device or a jax.sharding.Sharding, got {device!r}; write e.g. "
            "device=jax.devices()[0]."
        )
    try:
        source = iter(iterator)
    except TypeError:
        raise InputError(
            f"feed needs something to iterate over, got {type(iterator).__name__}; pass a "
            "generator or a list of batches."
        ) from None
    return Feed(source, int(depth), device)


def _on_device(batch: Any, device: Any) -> Any:
    is_wide = bool(jax.config.jax_enable_x64)  # pyright: ignore
    batch = jax.tree_util.tree_map_with_path(
        _checked if is_wide else _within_32_bits,
        batch,
        is_leaf=lambda leaf: isinstance(leaf, Padded | Ragged),
    )
    # JAX reads a NumPy array later, or for good: the iterator may have filled it again by then.
    batch = jax.tree.map(lambda x: x.copy() if isinstance(x, np.ndarray) else x, batch)
    return jax.device_put(batch, device)


def _checked(path: Any, leaf: Any) -> Any:
    """The leaf, unless it is an integer of Python that JAX cannot hold."""
    if isinstance(leaf, int):
        _check_range(path, leaf, np.int64, "int", "64 bits")
    return leaf


def _check_range(path: Any, value: int, dtype: Any, name: str, limit: str) -> None:
    bounds = np.iinfo(dtype)
    if not bounds.min <= value <= bounds.max:
        raise InputError(
            f"batch{jax.tree_util.keystr(path)} must fit into {limit}, got {value} ({name}); wrap "
            "it in dynemb_jax.keys if it is an id, or make it a float32."
        )


def _within_32_bits(path: Any, leaf: Any) -> Any:
    """The leaf with nothing in it that JAX would cut."""
    if isinstance(leaf, Padded):
        ids, lengths, mask, weights = leaf.tree_flatten()[0]
        if _is_wide(lengths):
            lengths = clipped_int32(lengths)
        if _is_wide(weights):
            weights = weights.astype(np.float32)
        return Padded.tree_unflatten(None, (ids, lengths, mask, weights))
    if isinstance(leaf, Ragged):
        ids, splits, weights = leaf.tree_flatten()[0]
        if _is_wide(splits):
            splits = clipped_int32(splits)
        if _is_wide(weights):
            weights = weights.astype(np.float32)
        return Ragged.tree_unflatten(None, (ids, splits, weights))
    limit = "32 bits while x64 is off"
    if isinstance(leaf, int):
        _check_range(path, leaf, np.int32, "int", limit)
        return leaf
    if not _is_wide(leaf):
        return leaf
    if leaf.ndim > 0:
        return keys(leaf)
    narrow = np.int32 if leaf.dtype.kind == "i" else np.uint32
    _check_range(path, int(leaf), narrow, leaf.dtype, limit)
    return leaf


def _is_wide(leaf: Any) -> bool:
    is_numpy = isinstance(leaf, np.ndarray | np.integer)
    return is_numpy and leaf.dtype.kind in "iu" and leaf.dtype.itemsize == 8


@atexit.register
def _end_all() -> None:
    """Ends the threads while they still can: one amid JAX may crash an interpreter that goes."""
    workers = [thread for thread in threading.enumerate() if isinstance(thread, _Worker)]
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.join(_WAIT_SECONDS)
