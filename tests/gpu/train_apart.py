"""A process of its own that trains a table and judges it: python -m tests.gpu.train_apart gpu 7."""

import sys

import jax
import numpy as np

import dynemb_jax as dj
from tests.gpu.batches import Judged, make_step
from tests.twin import random_grads

DIM, BATCH, STEPS = 16, 512, 200


def batch(seed, i):
    """Ids of a vocabulary that widens as steps go by."""
    return np.random.default_rng((seed, i)).integers(0, 500 + 200 * i, BATCH) * 2**31 + seed


def main(platform, seed):
    """Says "ready", waits for a line, trains, checks, and says "right"."""
    with jax.default_device(jax.devices(platform)[0]):
        judged, step = Judged(DIM, optimizer="adam_row", seed=seed), make_step()
        for i in range(STEPS):
            if i == 1:  # the first one has compiled
                print("ready", flush=True)
                sys.stdin.readline()
            judged.emb = step(judged.emb, dj.keys(batch(seed, i)), random_grads((BATCH, DIM), i))
        for i in range(STEPS):
            judged.oracle.lookup(batch(seed, i))
            judged.oracle.apply(batch(seed, i), random_grads((BATCH, DIM), i))
        judged.check()
        assert judged.stats().growths >= 5
    print("right", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
