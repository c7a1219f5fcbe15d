"""Steps that the transforms are applied to, and the comparison with the dictionary."""

import numpy as np

import dynemb_jax as dj
from tests.twin import assert_close, keys, random_grads

# One shape for all batches, so a jitted step compiles once. Keys repeat within and between them.
BATCHES = ((1, 2, 2, -1), (2, 3, 2**40, 3), (7, 7, 7, 1))


def train_step(emb, ids, grads):
    """Looks up and applies given gradients; returns (rows, emb)."""
    acts, emb = dj.lookup(emb, ids)
    return acts.rows, dj.apply_gradients(emb, acts, grads)


def batch_keys():
    """dj.Keys [batches, 4]."""
    return keys(BATCHES)


def batch_grads(dim=4):
    """float32 [batches, 4, dim]."""
    return random_grads((*np.shape(BATCHES), dim), 5)


def oracle_steps(oracle):
    """The same steps in the dictionary; returns the rows of each: [batches, 4, dim]."""
    rows = []
    for ids, grads in zip(BATCHES, batch_grads(oracle.dim), strict=True):
        rows.append(oracle.lookup(ids))
        oracle.apply(ids, grads)
    return np.stack(rows)


def check_steps(step, twin):
    """Runs a step function over the batches, one call each, and compares everything."""
    expected = oracle_steps(twin.oracle)
    for ids, grads, rows in zip(BATCHES, batch_grads(twin.dim), expected, strict=True):
        actual, twin.emb = step(twin.emb, keys(ids), grads)
        assert_close(actual, rows)
    twin.check()
