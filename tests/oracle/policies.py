"""Exact policies, which know nothing of buckets: they bound what choosing among two costs."""

import heapq
from collections import OrderedDict


class ExactLru:
    """Forgets the key that was used longest ago."""

    def __init__(self, capacity):
        self.capacity, self.kept, self.hits = capacity, OrderedDict(), 0

    def see(self, key):
        if key in self.kept:
            self.hits += 1
            self.kept.move_to_end(key)
            return
        if len(self.kept) == self.capacity:
            self.kept.popitem(last=False)
        self.kept[key] = None


class ExactLfu:
    """Forgets the key that was used least often since it came; of equal ones the oldest use."""

    def __init__(self, capacity):
        self.capacity, self.kept, self.hits = capacity, {}, 0
        self.heap, self.clock = [], 0

    def see(self, key):
        self.clock += 1
        if key in self.kept:
            self.hits += 1
            count = self.kept[key][0] + 1
        else:
            count = 1
            if len(self.kept) == self.capacity:
                self._forget_one()
        self.kept[key] = (count, self.clock)
        heapq.heappush(self.heap, (count, self.clock, key))

    def _forget_one(self):
        while True:
            count, clock, key = heapq.heappop(self.heap)
            if self.kept.get(key) == (count, clock):  # else an outdated entry
                del self.kept[key]
                return


EXACT = {"lru": ExactLru, "lfu": ExactLfu}
