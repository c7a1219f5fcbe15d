"""Bags of any lengths, one after the other: each for itself, by the formulas of pooling.

values: [capacity, dim]; row_splits: [B + 1]; weights: [capacity]; pooled rows and ct_out: [B, dim].
"""

import itertools

import numpy as np

from tests.oracle import pooling


def bags_of(row_splits):
    """Slices of the ids, one a bag."""
    return [slice(int(a), int(b)) for a, b in itertools.pairwise(row_splits)]


def pool(combiner, values, row_splits, weights=None):
    """The pooled rows [B, dim]."""
    rows = np.zeros((len(row_splits) - 1, np.shape(values)[-1]))
    for bag, ids in enumerate(bags_of(row_splits)):
        rows[bag] = pooling.pool(combiner, values[ids], None, _part(weights, ids))
    return rows


def pool_vjp(combiner, values, ct_out, row_splits, weights=None):
    """Returns (ct_values [capacity, dim], ct_weights [capacity])."""
    ct_values, ct_weights = np.zeros(np.shape(values)), np.zeros(len(values))
    for bag, ids in enumerate(bags_of(row_splits)):
        ct_values[ids], ct_weights[ids] = pooling.pool_vjp(
            combiner, values[ids], ct_out[bag], None, _part(weights, ids)
        )
    return ct_values, ct_weights


def _part(weights, ids):
    return None if weights is None else weights[ids]
