"""First values of rows, as functions of (seed, table name, key, column) and of nothing else."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from tests.oracle.philox import philox4x32

_NORMAL = NormalDist()


def splitmix64(x):
    """The finaliser of splitmix64 on one integer, taken modulo 2**64."""
    z = (x + 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def fnv1a64(data):
    """FNV-1a over bytes, 64 bits."""
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) % 2**64
    return h


def random_words(seed, table, keys, dim):
    """The 32 random bits of each key and column: uint32 [len(keys), dim]."""
    stream = splitmix64(seed % 2**64) ^ fnv1a64(table.encode())
    keys = np.array([int(k) % 2**64 for k in keys], np.uint64)
    blocks = -(-dim // 4)
    counter = np.zeros((len(keys), blocks, 4), np.uint64)
    counter[..., 0] = (keys & np.uint64(0xFFFFFFFF))[:, None]
    counter[..., 1] = (keys >> np.uint64(32))[:, None]
    counter[..., 2] = np.arange(blocks, dtype=np.uint64)[None, :]
    words = philox4x32(counter, (stream % 2**32, stream >> 32))
    return words.reshape(len(keys), blocks * 4)[:, :dim]


def _default_scale(value, dim):
    return 1.0 / math.sqrt(dim) if value is None else value


def _half_probability(words):
    """Lower-tail probabilities in (0, 0.5) and the signs, from 31 bits and one bit."""
    p = ((words & np.uint32(0x7FFFFFFF)).astype(np.float64) + 0.5) * 2.0**-32
    sign = np.where(words >> np.uint32(31), 1.0, -1.0)
    return p, sign


def _quantile(p):
    return np.array([_NORMAL.inv_cdf(x) for x in p.ravel()]).reshape(p.shape)


@dataclass(frozen=True)
class Constant:
    """Every element is the given number, rounded to float32."""

    value: float = 0.0

    def __call__(self, seed, table, keys, dim):
        return np.full((len(keys), dim), np.float32(self.value), np.float64)


@dataclass(frozen=True)
class Uniform:
    """U[-scale, scale) from 24 bits; the float32 result is exact, so it is computed in float32."""

    scale: float | None = None

    def __call__(self, seed, table, keys, dim):
        words = random_words(seed, table, keys, dim)
        unit = (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
        signed = np.float32(2.0) * unit - np.float32(1.0)
        scale = np.float32(_default_scale(self.scale, dim))
        return (signed * scale).astype(np.float64)


@dataclass(frozen=True)
class Normal:
    """N(0, stddev**2) by inversion, in float64."""

    stddev: float | None = None

    def __call__(self, seed, table, keys, dim):
        p, sign = _half_probability(random_words(seed, table, keys, dim))
        return -sign * _quantile(p) * _default_scale(self.stddev, dim)


@dataclass(frozen=True)
class TruncatedNormal:
    """Normal values conditioned on lying within two standard deviations, in float64."""

    stddev: float | None = None

    def __call__(self, seed, table, keys, dim):
        p, sign = _half_probability(random_words(seed, table, keys, dim))
        below = _NORMAL.cdf(-2.0)
        inside = below + p * (1.0 - 2.0 * below)
        return -sign * _quantile(inside) * _default_scale(self.stddev, dim)
