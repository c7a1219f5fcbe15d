"""DictTable: what a dynamic embedding table means, as a dictionary from key to row."""

from collections import Counter
from dataclasses import dataclass

import numpy as np


class OracleFullError(Exception):
    """The batch does not fit and the table was told to refuse it whole."""


@dataclass
class Row:
    """One row and the optimizer state that travels with it."""

    values: np.ndarray
    state: dict


class DictTable:
    """A dictionary of float64 rows with the verbs of the library.

    Keys are sequences of integers, any sign, taken modulo 2**64. `present` marks padding: where it
    is False the position holds no id. Every verb returns NumPy arrays of one entry per position.
    """

    def __init__(self, name, dim, *, optimizer, first_rows, seed=0, max_rows=None, on_full="error"):
        self.name, self.dim, self.seed = name, dim, seed
        self.optimizer, self.first_rows = optimizer, first_rows
        self.max_rows, self.on_full = max_rows, on_full
        self.rows = {}
        self.counters = Counter()

    @staticmethod
    def _keys(keys):
        return [int(k) % 2**64 for k in np.asarray(keys, object).ravel()]

    def _positions(self, keys, present):
        keys = self._keys(keys)
        mask = np.ones(len(keys), bool) if present is None else np.asarray(present, bool).ravel()
        return list(zip(keys, mask.tolist(), strict=True))

    def first_row(self, key):
        """The row a key has when it is inserted."""
        return self.first_rows(self.seed, self.name, [key], self.dim)[0]

    def _refused(self, positions):
        new = list(dict.fromkeys(k for k, here in positions if here and k not in self.rows))
        room = len(new) if self.max_rows is None else self.max_rows - len(self.rows)
        if len(new) > room and self.on_full == "error":
            raise OracleFullError(
                f"{len(self.rows)} rows and {len(new)} new ones, of {self.max_rows}"
            )
        return set(new[room:])

    def _insert(self, key):
        self.rows[key] = Row(self.first_row(key).copy(), self.optimizer.initial_state(self.dim))

    def lookup(self, keys, present=None):
        """Finds or inserts; refused ids and padding give zeros. Returns float64 [n, dim]."""
        positions = self._positions(keys, present)
        refused = self._refused(positions)
        out = np.zeros((len(positions), self.dim))
        for i, (key, here) in enumerate(positions):
            if not here:
                self.counters["padded"] += 1
                continue
            self.counters["ids"] += 1
            if key in refused:
                self.counters["refused"] += 1
                continue
            if key in self.rows:
                self.counters["hits"] += 1
            else:
                self.counters["inserted"] += 1
                self._insert(key)
            out[i] = self.rows[key].values
        self.counters["lookups"] += 1
        return out

    def find(self, keys, present=None, missing_row=0.0):
        """Finds only. missing_row is a number or "initializer". Returns float64 [n, dim]."""
        positions = self._positions(keys, present)
        out = np.zeros((len(positions), self.dim))
        for i, (key, here) in enumerate(positions):
            if not here:
                self.counters["padded"] += 1
                continue
            if key in self.rows:
                self.counters["found"] += 1
                out[i] = self.rows[key].values
            else:
                self.counters["missing"] += 1
                out[i] = self.first_row(key) if missing_row == "initializer" else missing_row
        return out

    def apply(self, keys, grads, present=None, *, learning_rate=None, step=None):
        """Sums the gradients of each key, then updates each key once. Refused keys are skipped."""
        grads = np.asarray(grads, np.float64).reshape(-1, self.dim)
        step = self.counters["updates"] if step is None else step
        rate = self.optimizer.learning_rate if learning_rate is None else learning_rate
        rate = rate(step) if callable(rate) else rate
        sums = {}
        for (key, here), grad in zip(self._positions(keys, present), grads, strict=True):
            if here and key in self.rows:
                sums[key] = sums.get(key, 0.0) + grad
        for key, grad in sums.items():
            row = self.rows[key]
            row.values, row.state = self.optimizer.update(row.values, row.state, grad, rate, step)
        self.counters["updates"] += 1
        self.counters["updated_rows"] += len(sums)

    def assign(self, keys, rows, state=None):
        """Inserts or overwrites; the last of several duplicates wins."""
        rows = np.asarray(rows, np.float64).reshape(-1, self.dim)
        for i, key in enumerate(self._keys(keys)):
            self._insert(key)
            self.rows[key].values = rows[i].copy()
            if state is not None:
                self.rows[key].state = {n: np.array(v[i]) for n, v in state.items()}
            self.counters["assigned"] += 1

    def erase(self, keys):
        """Forgets the keys, row and state; keys that are not there are ignored."""
        for key in self._keys(keys):
            self.counters["erased"] += self.rows.pop(key, None) is not None

    def contains(self, keys):
        """Bool [n]."""
        return np.array([k in self.rows for k in self._keys(keys)], bool)

    def values(self, keys):
        """float64 [n, dim], zeros for missing keys; counts nothing."""
        zeros = np.zeros(self.dim)
        found = [self.rows[k].values if k in self.rows else zeros for k in self._keys(keys)]
        return np.array(found, np.float64).reshape(-1, self.dim)

    def state(self, keys):
        """The state arrays by name, zeros for missing keys; counts nothing."""
        initial = self.optimizer.initial_state(self.dim)
        rows = [self.rows.get(k) for k in self._keys(keys)]
        return {
            name: np.array([row.state[name] if row else np.zeros_like(first) for row in rows])
            for name, first in initial.items()
        }
