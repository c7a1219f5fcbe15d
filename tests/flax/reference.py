"""What the modules are compared with: a model small enough to differentiate by hand in float64.

logits = rows @ w, loss = mean((logits - y)**2); rows learn by the dictionary's Adagrad, w by SGD.
"""

import numpy as np

import dynemb_jax as dj
from tests.oracle.dict_table import DictTable
from tests.plugins import INITIALIZERS, OPTIMIZERS
from tests.transform.steps import BATCHES
from tests.twin import assert_close, keys

DIM, RATE = 4, 0.1
W = np.random.default_rng(0).normal(size=(DIM, 1)).astype(np.float32)
LABELS = np.random.default_rng(1).normal(size=np.shape(BATCHES)).astype(np.float32)
TABLE = dj.TableConfig(
    "items",
    DIM,
    optimizer=OPTIMIZERS["adagrad"][0],
    initializer=INITIALIZERS["uniform"][0],
)
FEATURES = {"item": dj.FeatureConfig(TABLE)}


def ids(turn):
    """Ids of a step, in the nest of FEATURES."""
    return {"item": keys(BATCHES[turn])}


def stacked():
    """Ids and labels of all steps, stacked for a scan."""
    return {"item": keys(BATCHES)}, LABELS


class Reference:
    """The same model in NumPy."""

    def __init__(self):
        self.table = DictTable(
            "items",
            DIM,
            optimizer=OPTIMIZERS["adagrad"][1],
            first_rows=INITIALIZERS["uniform"][1],
            seed=0,
        )
        self.w = W.astype(np.float64)

    def step(self, batch, labels):
        """One step; returns the loss before it."""
        rows = self.table.lookup(batch)
        error = (rows @ self.w)[:, 0] - labels
        d_logits = 2 * error[:, None] / error.size
        self.table.apply(batch, d_logits @ self.w.T)
        self.w = self.w - RATE * rows.T @ d_logits
        return np.mean(error**2)

    def run(self):
        """All steps; returns their losses."""
        return np.array([self.step(*batch) for batch in zip(BATCHES, LABELS, strict=True)])

    def check(self, emb, w):
        """Rows, optimizer state and w equal those of a model."""
        known = list(self.table.rows)
        got = dj.get(emb, "items", keys(known))
        assert got.found.all()
        assert_close(got.rows, self.table.values(known))
        assert_close(got.state["accumulator"], self.table.state(known)["accumulator"])
        assert_close(w, self.w)
        assert dj.stats(emb)["items"].rows == len(known)
