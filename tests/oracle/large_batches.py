"""DictTable for batches of a million ids: NumPy brings equal ids together first."""

import numpy as np

from tests.oracle.dict_table import DictTable, Row


def _words(keys):
    keys = np.asarray(keys)
    return keys.astype(np.int64 if keys.dtype.kind == "i" else np.uint64).view(np.uint64).ravel()


class LargeBatchTable(DictTable):
    """A DictTable without padding and limits: the same rows, state and counters, sooner.

    Keys are arrays of integers. Sums of gradients are float64.
    """

    def lookup(self, keys, present=None):
        """Finds or inserts. Returns float64 [n, dim]."""
        assert present is None
        unique, inverse = np.unique(_words(keys), return_inverse=True)
        new = [key for key in unique.tolist() if key not in self.rows]
        for key, row in zip(new, self.first_rows(self.seed, self.name, new, self.dim), strict=True):
            self.rows[key] = Row(row.copy(), self.optimizer.initial_state(self.dim))
        self.counters["lookups"] += 1
        self.counters["ids"] += inverse.size
        self.counters["inserted"] += len(new)
        self.counters["hits"] += inverse.size - len(new)
        return self.values(unique)[inverse.ravel()]

    def apply(self, keys, grads, present=None, *, learning_rate=None, step=None):
        """Sums the gradients of each key, then updates each key once; every key is known."""
        assert present is None
        words = _words(keys)
        grads = np.asarray(grads).reshape(words.size, self.dim)
        order = np.argsort(words, kind="stable")
        ordered = words[order]
        starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: words.size])
        sums = grads[order].astype(np.float64)
        sums = np.add.reduceat(sums, starts, axis=0) if words.size else sums
        counted = self.counters["updated_rows"]
        # Of already summed gradients, the dictionary's own update.
        super().apply(ordered[starts], sums, learning_rate=learning_rate, step=step)
        assert self.counters["updated_rows"] == counted + starts.size
