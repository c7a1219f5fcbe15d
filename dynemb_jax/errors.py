"""The exceptions of dynemb_jax, and how native failures become them.

A failure inside a compiled program reaches Python as whatever JAX raises there
(``jax.errors.JaxRuntimeError`` or ``ValueError``, at the call or when an output
is waited for). Its text carries ``dynemb[CODE]:``, which names the class below.
Functions of this package called eagerly raise these classes themselves; around a
jitted function of your own use :class:`typed`.
"""

import contextlib
import re
from types import TracebackType


class DynembError(Exception):
    """Base of all exceptions of this package."""


class ConfigError(DynembError, ValueError):
    """A configuration that cannot work."""


class InputError(DynembError, TypeError, ValueError):
    """Ids, gradients or other operands of a wrong type, shape or structure."""


class UnknownTableError(DynembError, KeyError):
    """A table name that the Embeddings does not have."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class StaleStateError(DynembError, RuntimeError):
    """An Embeddings that is no longer the current state of its tables."""


class ClosedError(DynembError, RuntimeError):
    """Tables that were closed."""


class WrongDeviceError(DynembError, RuntimeError):
    """A program that runs on another device than its tables live on."""


class TableFullError(DynembError, RuntimeError):
    """A budget that ends with ``on_full="error"``; the tables are unchanged."""


class TooManyOutstandingError(DynembError, RuntimeError):
    """Activations that waited for their update behind too many lookups; nothing has changed."""


class TableMemoryError(DynembError, MemoryError):
    """No memory for a table to grow; the tables are unchanged."""


class NativeError(DynembError, RuntimeError):
    """A native failure without a class of its own."""


_CLASSES: dict[str, type[DynembError]] = {
    "INVALID_ARGUMENT": InputError,
    "CONFIG": ConfigError,
    "STALE_STATE": StaleStateError,
    "TABLE_FULL": TableFullError,
    "TOO_MANY_OUTSTANDING": TooManyOutstandingError,
    "MEMORY": TableMemoryError,
    "CLOSED": ClosedError,
    "WRONG_DEVICE": WrongDeviceError,
}
_NATIVE_TEXT = re.compile(r"dynemb\[(\w+)\]: ([^\n]*)")
# JAX's words for an array that was donated; it does not always say which one.
_DELETED = re.compile(r"has been deleted|deleted or donated")

DELETED_TOKEN_TEXT = (
    "an Embeddings (or another array) that was donated to an earlier call is used again; use what "
    "that call returned, or dynemb_jax.resync(emb) if it failed."
)


def from_exception(error: BaseException) -> DynembError | None:
    """Returns the typed exception for a failure raised by JAX.

    Args:
        error: what a jitted function, ``jax.block_until_ready`` or the native module raised.

    Returns:
        An instance of the class that the text names, or None if the failure is none of ours.
    """
    if isinstance(error, DynembError):
        return error
    text = str(error)
    found = _NATIVE_TEXT.search(text)
    if found:
        return _CLASSES.get(found[1], NativeError)(found[2])
    if isinstance(error, RuntimeError | ValueError) and _DELETED.search(text):
        return StaleStateError(DELETED_TOKEN_TEXT)
    return None


class typed(contextlib.ContextDecorator):  # noqa: N801 (reads as a word: with typed():)
    """Raises the classes of this module for failures of jitted functions within.

    Example:
        >>> @typed()                                   # doctest: +SKIP
        ... @functools.partial(jax.jit, donate_argnames="emb")
        ... def train_step(emb, batch): ...

    An asynchronous failure surfaces where an output is waited for; put that wait inside too.
    """

    def __enter__(self) -> "typed":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ours = from_exception(error) if error is not None else None
        if ours is not None and ours is not error:
            raise ours from error
