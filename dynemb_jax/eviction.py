"""Eviction policies: which keys a full table forgets to make room for new ones.

Every row of a table with a policy has a score, a 64-bit number that is larger for what is worth
more and never goes down. When a new key finds the table full, the key of least score in the first
two buckets of its path makes way, unless a lookup has touched it whose update is outstanding.
A time to live (:func:`ttl`) on top of any policy forgets keys by their age, whether the table is
full or not. docs/eviction.md tells the whole of it.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np

from dynemb_jax.errors import ConfigError

_MAX_ROWS = 1 << 40
_MAX_HALF_LIFE = 1 << 32
_MAX_SECONDS = 1 << 33  # in nanoseconds they fit into 63 bits


@dataclass(frozen=True)
class Policy:
    """Base of the eviction policies.

    Attributes:
        max_rows: keys to hold at most; None leaves the bound to the table's ``max_bytes``.
        record: evicted keys to keep for :func:`dynemb_jax.drain_evicted`, at most.
        ttl_steps: time to live in training lookups of the table, from :func:`ttl`.
        ttl_seconds: the same by the clock; at most one of them.
    """

    max_rows: int | None = None
    record: int = 0
    ttl_steps: int | None = None
    ttl_seconds: float | None = None

    # ScoreKind of core/score.h.
    kind: ClassVar[int]

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

    @property
    def native(self) -> int:
        """ScoreKind of core/score.h."""
        return self.kind

    @property
    def half_life(self) -> int:
        """Of a decayed score, in training lookups; 1 where nothing decays."""
        return 1

    @property
    def has_ttl(self) -> bool:
        """Whether keys are forgotten by age."""
        return self.ttl_steps is not None or self.ttl_seconds is not None

    def native_ttl(self) -> tuple[int, int]:
        """TtlClock of table/table_config.h, and the time to live by it."""
        if self.ttl_steps is not None:
            return 1, int(self.ttl_steps)
        if self.ttl_seconds is not None:
            return 2, math.ceil(self.ttl_seconds * 1e9)
        return 0, 0


def _is_count(value: Any, least: int, end: int = _MAX_ROWS) -> bool:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_integer and bool(least <= value < end)


@dataclass(frozen=True)
class Lru(Policy):
    """See :func:`lru`."""

    kind: ClassVar[int] = 1


@dataclass(frozen=True)
class Timestamp(Policy):
    """See :func:`timestamp`."""

    kind: ClassVar[int] = 2


@dataclass(frozen=True)
class Lfu(Policy):
    """See :func:`lfu`."""

    kind: ClassVar[int] = 3
    decay: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decay is not None and not _is_count(self.decay, 1, _MAX_HALF_LIFE):
            raise ConfigError(
                "decay of eviction.lfu must be a whole number in [1, 2**32) or None, got "
                f"{self.decay!r}; write e.g. decay=10_000, the training lookups after which a use "
                "counts half."
            )

    @property
    def native(self) -> int:
        """Decayed counts are another kind of score."""
        return self.kind if self.decay is None else 5

    @property
    def half_life(self) -> int:
        """In training lookups."""
        return 1 if self.decay is None else int(self.decay)


@dataclass(frozen=True)
class Custom(Policy):
    """See :func:`custom`."""

    kind: ClassVar[int] = 4


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


def lfu(max_rows: int | None = None, *, record: int = 0, decay: int | None = None) -> Lfu:
    """Forgets what was used least often: the score counts ids of training lookups.

    Copies of a key in a batch count each; assigned rows count as one id; the count saturates.

    With ``decay``, a use counts half after so many training lookups of the table, a quarter after
    twice as many. An id of lookup L weighs ``w(L) = 2**p * (1 + f)``, ``p + f = L / decay`` with p
    whole and f in [0, 1), which is 2**(L / decay) with straight lines between its doublings; the
    score is the sum of a key's weights, so nothing has to be decayed while a key waits, and what a
    key counts now is its score over w(now) (G. Cormode, V. Shkapenyuk, D. Srivastava, B. Xu,
    "Forward decay", ICDE 2009). Scores are 64 bits that order like these sums: the exponent plus
    one above, 32 binary places below, cut off. ``(lookups // decay + 1) << 32`` is within a factor
    of two below one use now.

    Args:
        max_rows: keys to hold at most; None leaves the bound to the table's ``max_bytes``.
        record: evicted keys to keep for :func:`dynemb_jax.drain_evicted`, at most.
        decay: half-life of a use in training lookups, in [1, 2**32); None: uses never fade.

    Raises:
        ConfigError: a value that cannot work.
    """
    return Lfu(max_rows, record, decay=decay)


def custom(max_rows: int | None = None, *, record: int = 0) -> Custom:
    """Forgets what you say is worth least: scores come with the ids, ``lookup(..., scores=)``.

    The largest score that a key was given holds. Rows that assign inserts start at 0. Args and
    errors are those of :func:`lru`.
    """
    return Custom(max_rows, record)


P = TypeVar("P", bound=Policy)


def ttl(policy: P, *, steps: int | None = None, seconds: float | None = None) -> P:
    """The policy with a time to live: keys that nobody touches for longer are forgotten.

    Training lookups and assign touch a key, evaluation does not. A key whose last touch is more
    than ``steps`` training lookups of the table ago, or more than ``seconds``, is forgotten before
    such a lookup, row, state and score together; at the latest when an eighth of that time has
    passed again, because that often all rows are looked through. Rows that wait for their update
    stay.
    ``stats(emb)[name].expired`` counts these keys, and :func:`dynemb_jax.drain_evicted` has them.

    A table whose policy has a time to live needs no other bound. 31 slots take 256 bytes more,
    except for steps of :func:`lru` and seconds of :func:`timestamp`, whose scores tell the age.

    Args:
        policy: any policy of this module.
        steps: in [1, 2**40); or
        seconds: in (0, 2**33), by the host's clock.

    Raises:
        ConfigError: a value that cannot work, or not exactly one of them.
    """
    if not isinstance(policy, Policy):
        raise ConfigError(
            f"ttl takes an eviction policy, got {policy!r}; write e.g. "
            "eviction.ttl(eviction.lru(max_rows=1_000_000), steps=10_000)."
        )
    if policy.has_ttl:
        raise ConfigError(
            f"ttl takes a policy without a time to live, got {policy!r}; one of steps and seconds "
            "is enough, write e.g. eviction.ttl(eviction.lru(), steps=10_000)."
        )
    if (steps is None) == (seconds is None):
        raise ConfigError(
            f"ttl needs either steps or seconds, got {'none' if steps is None else 'both'}; write "
            "e.g. eviction.ttl(eviction.lru(), steps=10_000)."
        )
    if steps is not None and not _is_count(steps, 1):
        raise ConfigError(
            f"steps of eviction.ttl must be a whole number in [1, 2**40), got {steps!r}; it counts "
            "training lookups of the table, write e.g. steps=10_000."
        )
    if seconds is not None:
        is_number = isinstance(seconds, int | float | np.integer | np.floating)
        if not is_number or isinstance(seconds, bool) or not 0 < seconds < _MAX_SECONDS:
            raise ConfigError(
                f"seconds of eviction.ttl must be a number in (0, 2**33), got {seconds!r}; write "
                "e.g. seconds=86_400."
            )
    return dataclasses.replace(policy, ttl_steps=steps, ttl_seconds=seconds)
