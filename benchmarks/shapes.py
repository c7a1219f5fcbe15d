"""Batches that every benchmark draws from, so that figures of different files compare."""

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]


def uniform_ids(rng: np.random.Generator, num_ids: int, vocabulary: int) -> Ids:
    """Returns ids drawn evenly from [0, vocabulary)."""
    return rng.integers(0, vocabulary, num_ids)


def zipf_ids(rng: np.random.Generator, num_ids: int, vocabulary: int, alpha: float) -> Ids:
    """Returns ids of a bounded power law, p(k) ~ k^-alpha on [1, vocabulary).

    By the inverse of the continuous distribution function in float64, floored: no table of
    probabilities, and the head is as heavy as the formula says.
    """
    exponent = 1.0 - alpha
    u = rng.random(num_ids)
    x = (1.0 + u * (float(vocabulary) ** exponent - 1.0)) ** (1.0 / exponent)
    return np.minimum(np.floor(x).astype(np.int64), vocabulary - 1)


def draw(rng: np.random.Generator, skew: str, num_ids: int, vocabulary: int) -> Ids:
    """Returns ids of a named skew: "uniform" or "zipf<alpha>"."""
    if skew == "uniform":
        return uniform_ids(rng, num_ids, vocabulary)
    return zipf_ids(rng, num_ids, vocabulary, float(skew.removeprefix("zipf")))


def spread(ids: Ids) -> Keys:
    """Returns splitmix64 of each id: distinct keys all over the 64-bit range."""
    with np.errstate(over="ignore"):
        z = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
