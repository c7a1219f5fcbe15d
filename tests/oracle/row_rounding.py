"""Floats of 16 bits and how numbers are rounded to them, in float64 and by their spacing."""

from dataclasses import dataclass

import numpy as np

from tests.oracle.philox import philox4x32
from tests.oracle.row_init import fnv1a64, splitmix64


@dataclass(frozen=True)
class Format:
    """Numbers ``m 2**e`` of ``digits`` binary digits, none closer together than ``smallest``."""

    digits: int
    smallest: float
    largest: float

    def spacing(self, x):
        """Distance between the neighbours of x."""
        _, exponent = np.frexp(np.abs(np.asarray(x, np.float64)))
        return np.maximum(np.ldexp(1.0, exponent - self.digits), self.smallest)

    def nearest(self, x):
        """Round to nearest, ties to even; infinite beyond half a spacing above the largest."""
        x = np.asarray(x, np.float64)
        rounded = np.rint(x / self.spacing(x)) * self.spacing(x)
        return np.where(np.abs(rounded) > self.largest, np.copysign(np.inf, x), rounded)

    def between(self, x):
        """The neighbour towards 0, and which part of the way to the other one x is."""
        units = np.abs(np.asarray(x, np.float64)) / self.spacing(x)
        return np.floor(units) * self.spacing(x), units - np.floor(units)


BFLOAT16 = Format(8, 2.0**-133, float(2.0**128 - 2.0**120))
FLOAT16 = Format(11, 2.0**-24, 65504.0)


def random_halves(seed, table, step, key, dim):
    """The 16 random bits of each column of a key in one update."""
    stream = splitmix64(seed % 2**64) ^ fnv1a64(table.encode())
    stream = splitmix64(stream ^ splitmix64(step))
    key, blocks = key % 2**64, -(-dim // 8)
    counter = np.array([[key % 2**32, key >> 32, block, 1] for block in range(blocks)], np.uint64)
    words = philox4x32(counter, (stream % 2**32, stream >> 32)).ravel()
    return np.stack([words & 0xFFFF, words >> 16], axis=-1).ravel()[:dim].astype(np.int64)


def stochastic(of, x, random):
    """Rounds x away from 0 where its 16 random bits say so, else towards it."""
    lower, part = of.between(x)
    up = np.where(
        (of is FLOAT16) & (np.abs(x) >= 2.0**-14),
        part * 2**13 + random % 2**13 >= 2**13,
        np.where(of is FLOAT16, random < part * 2**16, part * 2**16 + random >= 2**16),
    )
    return np.copysign(lower + up * of.spacing(x), x)
