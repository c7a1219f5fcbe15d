"""Admission rules: which keys a table lets in, so that rare ones take no row.

A rule judges the ids of training lookups whose key has no row, one by one in their order. An id
that is refused gets the table's missing row (``TableConfig(missing_row="initializer")``: the first
values that its key would have) and takes no gradient; ``stats(emb)[name].refused["admission"]``
counts it. The first one that is admitted inserts its key, and ids behind it are served as ever, in
the same batch too. A key that is there needs no admission; :func:`dynemb_jax.assign` asks for none.
docs/eviction.md tells the whole of it.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dynemb_jax.errors import ConfigError

MAX_THRESHOLD = 255  # kMaxCount of core/admit.h: counters have 8 bits
_COUNTERS_PER_BLOCK = 32
_MAX_COUNTERS = 1 << 40


class NativeRule(NamedTuple):
    """A rule as the engine reads it."""

    kind: int  # AdmissionKind of core/admit.h
    threshold: int = 0
    limit: int = 0
    counters: int = 0


@dataclass(frozen=True)
class Rule:
    """Base of the admission rules."""

    def native(self) -> NativeRule:
        """For the engine."""
        raise NotImplementedError


@dataclass(frozen=True)
class Frequency(Rule):
    """See :func:`frequency`."""

    kind: ClassVar[int] = 1
    threshold: int
    counters: int

    def __post_init__(self) -> None:
        if not _is_count(self.threshold, 1, MAX_THRESHOLD + 1):
            raise ConfigError(
                f"threshold of admission.frequency must be a whole number in [1, {MAX_THRESHOLD}], "
                f"got {self.threshold!r}; write e.g. admission.frequency(2), which lets a key in "
                "when it occurs for the second time."
            )
        if not _is_count(self.counters, 1, _MAX_COUNTERS + 1):
            raise ConfigError(
                "counters of admission.frequency must be a whole number in [1, 2**40], got "
                f"{self.counters!r}; write e.g. counters=1 << 24, one byte each."
            )

    def native(self) -> NativeRule:
        """For the engine; counters rounded up to what a sketch can have."""
        blocks = -(-int(self.counters) // _COUNTERS_PER_BLOCK)
        counters = _COUNTERS_PER_BLOCK << (blocks - 1).bit_length()
        return NativeRule(self.kind, threshold=int(self.threshold), counters=counters)


@dataclass(frozen=True)
class Probability(Rule):
    """See :func:`probability`."""

    kind: ClassVar[int] = 2
    p: float

    def __post_init__(self) -> None:
        is_number = isinstance(self.p, int | float | np.integer | np.floating)
        if not is_number or isinstance(self.p, bool) or not 0.0 < self.p <= 1.0:
            raise ConfigError(
                f"p of admission.probability must be a number in (0, 1], got {self.p!r}; write "
                "e.g. admission.probability(0.1), which lets a new key in at one id of ten."
            )

    def native(self) -> NativeRule:
        """For the engine: the largest draw of 64 bits that is admitted."""
        return NativeRule(self.kind, limit=max(0, math.ceil(float(self.p) * 2.0**64) - 1))


def _is_count(value: Any, least: int, end: int) -> bool:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_integer and bool(least <= value < end)


def frequency(threshold: int, *, counters: int = 1 << 24) -> Frequency:
    """Lets a key in at its ``threshold``-th id; ids of one batch count each.

    Ids of absent keys are counted in a count-min sketch (G. Cormode, S. Muthukrishnan, "An improved
    data stream summary", 2005) of the table's own: 8-bit counters in blocks of 32, of which a key
    owns four in one block. It takes as many bytes as there are counters: ``counters`` rounded up to
    32 times a power of two, beside the table's ``max_bytes``
    (``stats(emb)[name].admission_bytes``). Keys that share all four counters are let in too early,
    never too late. After as many ids as a sixteenth of the counters, all counts are halved
    (G. Einziger, R. Friedman, B. Manes, "TinyLFU", 2017), so a key has to come ``threshold`` times
    within about that many ids of keys that are not there.

    Args:
        threshold: in [1, 255]; 1 lets every key in.
        counters: 16 for each id of an absent key that shall be remembered.

    Raises:
        ConfigError: a value that cannot work.
    """
    return Frequency(threshold, counters)


def probability(p: float) -> Probability:
    """Lets a key in with probability ``p`` at each of its ids, and remembers nothing.

    The draws are Philox4x32-10 of the table's seed and name, the key, the number of the table's
    training lookup (modulo 2**32) and the place of the id among those of its key in the batch: the
    same in every run and on every device.

    Args:
        p: in (0, 1].

    Raises:
        ConfigError: a value that cannot work.
    """
    return Probability(p)
