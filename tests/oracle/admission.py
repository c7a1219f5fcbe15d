"""Which ids of absent keys are admitted, predicted exactly. A batch is judged, then remembered."""

import math

from tests.oracle.philox import philox4x32
from tests.oracle.row_init import fnv1a64, splitmix64

LARGEST = 2**64 - 1


def mix64(x):
    """The finaliser of splitmix64 without its first addition."""
    return splitmix64((x - 0x9E3779B97F4A7C15) % 2**64)


class Everyone:
    """No rule."""

    def judge(self, ids, lookup):
        """Bool per id: keys of absent ids in their order, and the number of the lookup, from 1."""
        return [True] * len(ids)

    def remember(self, ids):
        """The judged batch has come to pass."""

    def forget(self):
        """As in the beginning."""


class Counted(Everyone):
    """Exact counts without bound: the t-th id of a key is the first that is admitted."""

    def __init__(self, threshold):
        self.threshold, self.counts = threshold, {}

    def seen(self, key):
        """Ids of the key in earlier batches."""
        return self.counts.get(key, 0)

    def judge(self, ids, lookup):
        before = {}
        admitted = []
        for key in ids:
            before[key] = before.get(key, self.seen(key)) + 1
            admitted.append(before[key] >= self.threshold)
        return admitted

    def remember(self, ids):
        for key in ids:
            self.counts[key] = self.counts.get(key, 0) + 1

    def forget(self):
        self.counts = {}


class Sketched(Counted):
    """Counts of a sketch of 8-bit counters, blocks of four groups of eight, halved now and then."""

    def __init__(self, threshold, counters):
        super().__init__(threshold)
        self.counters, self.cells, self.counted = counters, [0] * counters, 0

    def _cells(self, key):
        bits = mix64(splitmix64(key))
        block = bits % (self.counters // 32)
        return [block * 32 + 8 * group + (bits >> (52 + 3 * group)) % 8 for group in range(4)]

    def seen(self, key):
        return min(self.cells[cell] for cell in self._cells(key))

    def remember(self, ids):
        for key in ids:
            for cell in self._cells(key):
                self.cells[cell] = min(255, self.cells[cell] + 1)
        self.counted += len(ids)
        halved = False
        while self.counted >= self.counters // 16:
            self.cells = [count // 2 for count in self.cells]
            self.counted //= 2
            halved = True
        if halved:
            self.counted = 0

    def forget(self):
        self.cells, self.counted = [0] * self.counters, 0


class Drawn(Everyone):
    """One draw per id, until the first that is admitted."""

    def __init__(self, p, name="items", seed=0):
        self.limit = math.ceil(p * 2.0**64) - 1
        stream = splitmix64(splitmix64(seed % 2**64) ^ fnv1a64(name.encode()))
        self.stream = (stream % 2**32, stream >> 32)

    def judge(self, ids, lookup):
        places, let_in, admitted = {}, set(), []
        for key in ids:
            places[key] = places.get(key, 0) + 1
            counter = [key % 2**32, key >> 32, lookup % 2**32, places[key]]
            words = [int(word) for word in philox4x32(counter, self.stream)]
            if words[0] + (words[1] << 32) <= self.limit:
                let_in.add(key)
            admitted.append(key in let_in)
        return admitted
