"""Eviction policies: which keys a full table forgets to make room for new ones.

Every row of a table with a policy has a score, a 64-bit number that is larger for what is worth
more and never goes down. When a new key finds the table full, the key of least score in the first
two buckets of its path makes way, unless a lookup has touched it whose update is outstanding.
docs/eviction.md tells the whole of it.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dynemb_jax.errors import ConfigError

_MAX_ROWS = 1 << 40


@dataclass(frozen=True)
class Policy:
    """Base of the eviction policies.

    Attributes:
        max_rows: keys to hold at most; None leaves the bound to the table's ``max_bytes``.
        record: evicted keys to keep for :func:`dynemb_jax.drain_evicted`, at most.
    """

    max_rows: int | None = None
    record: int = 0

    # ScoreKind of core/score.h.
    native: ClassVar[int]

    def __post_init__(self) -> None:
        name = type(self).__name__.lower()
        if self.max_rows is not None and not _is_count(self.max_rows, 1):
            raise ConfigError(
                f"max_rows of eviction.{name} must be a whole number in [1, 2**40) or None, got "
                f"{self.max_rows!r}; write e.g. eviction.{name}(max_rows=1_000_000)."
            )
        if not _is_count(self.record, 0):
            raise ConfigError(
                f"record of eviction.{name} must be a whole number in [0, 2**40), got "
                f"{self.record!r}; write e.g. record=100_000, the evicted keys to keep between two "
                "calls of drain_evicted."
            )


def _is_count(value: Any, least: int) -> bool:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_integer and bool(least <= value < _MAX_ROWS)


@dataclass(frozen=True)
class Lru(Policy):
    """See :func:`lru`."""

    native: ClassVar[int] = 1


@dataclass(frozen=True)
class Timestamp(Policy):
    """See :func:`timestamp`."""

    native: ClassVar[int] = 2


@dataclass(frozen=True)
class Lfu(Policy):
    """See :func:`lfu`."""

    native: ClassVar[int] = 3


@dataclass(frozen=True)
class Custom(Policy):
    """See :func:`custom`."""

    native: ClassVar[int] = 4


def lru(max_rows: int | None = None, *, record: int = 0) -> Lru:
    """Forgets what was used longest ago, in steps: the score is the number of the training lookup.

    Training lookups of the table are numbered from 1 (``stats(emb)[name].lookups``). Assigned rows
    count as touched by the latest one.

    Args:
        max_rows: keys to hold at most; None leaves the bound to the table's ``max_bytes``.
        record: evicted keys to keep for :func:`dynemb_jax.drain_evicted`, at most.

    Raises:
        ConfigError: a value that cannot work.
    """
    return Lru(max_rows, record)


def timestamp(max_rows: int | None = None, *, record: int = 0) -> Timestamp:
    """Forgets what was used longest ago, by the clock: the score is nanoseconds since 1970.

    Args and errors are those of :func:`lru`.
    """
    return Timestamp(max_rows, record)


def lfu(max_rows: int | None = None, *, record: int = 0) -> Lfu:
    """Forgets what was used least often: the score counts ids of training lookups.

    Copies of a key in a batch count each; assigned rows count as one id; the count saturates. Args
    and errors are those of :func:`lru`.
    """
    return Lfu(max_rows, record)


def custom(max_rows: int | None = None, *, record: int = 0) -> Custom:
    """Forgets what you say is worth least: scores come with the ids, ``lookup(..., scores=)``.

    The largest score that a key was given holds. Rows that assign inserts start at 0. Args and
    errors are those of :func:`lru`.
    """
    return Custom(max_rows, record)
