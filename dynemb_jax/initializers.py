"""First values of rows.

The value of a column depends on (seed, table name, key, column) alone: the same bits in any
batch, order, process or platform, and again after the key was erased and came back. Philox4x32-10
is keyed by ``splitmix64(seed) ^ fnv1a64(table name)`` and counts by ``(key, column // 4)``.
"""

import math
from dataclasses import dataclass

from dynemb_jax.errors import ConfigError


@dataclass(frozen=True, repr=False)
class Initializer:
    """A distribution of first values; make one with the functions of this module."""

    kind: int
    parameter: float | None  # None: 1 / sqrt(dim)

    def __repr__(self) -> str:
        name = ("constant", "uniform", "normal", "truncated_normal")[self.kind]
        return f"{name}({'' if self.parameter is None else self.parameter})"

    def resolve(self, dim: int) -> float:
        """The constant, half width or standard deviation for rows of ``dim`` columns."""
        return 1.0 / math.sqrt(dim) if self.parameter is None else float(self.parameter)


_MAX_FLOAT32 = 3.4028234663852886e38


def _checked(name: str, value: float | None, low: float) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, got {value!r}; pass e.g. 0.05.")
    if abs(value) > _MAX_FLOAT32:
        raise ConfigError(f"{name} must fit into float32, got {value!r}; pass e.g. 0.05.")
    if value < low:
        raise ConfigError(f"{name} must be at least {low}, got {value!r}; pass e.g. 0.05.")
    return float(value)


def constant(value: float = 0.0) -> Initializer:
    """Every column starts at ``value``."""
    return Initializer(0, _checked("value", value, -math.inf))


def uniform(scale: float | None = None) -> Initializer:
    """Columns start uniform in ``[-scale, scale)``; None means ``1 / sqrt(dim)``."""
    return Initializer(1, _checked("scale", scale, 0.0))


def normal(stddev: float | None = None) -> Initializer:
    """Columns start normal with mean 0; ``stddev`` None means ``1 / sqrt(dim)``.

    One 32-bit number a column through the inverse distribution function (Giles, "Approximating
    the erfinv function", 2010), so values reach to 6.3 standard deviations.
    """
    return Initializer(2, _checked("stddev", stddev, 0.0))


def truncated_normal(stddev: float | None = None) -> Initializer:
    """As :func:`normal`, cut at two ``stddev`` on either side and not rescaled."""
    return Initializer(3, _checked("stddev", stddev, 0.0))
