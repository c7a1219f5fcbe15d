"""Policies without shortcuts: all keys in one order, one id after the other."""

import heapq
from collections import OrderedDict
from collections.abc import Callable


class ExactLru:
    """Forgets the key that was used longest ago."""

    def __init__(self, capacity: int):
        self.capacity, self.hits = capacity, 0
        self.kept: OrderedDict[int, None] = OrderedDict()

    def see(self, key: int, lookup: int, given: int) -> None:
        del lookup, given  # the order of ids is finer
        if key in self.kept:
            self.hits += 1
            self.kept.move_to_end(key)
            return
        if len(self.kept) == self.capacity:
            self.kept.popitem(last=False)
        self.kept[key] = None


class ExactScore:
    """Forgets the key of least score; of equal ones, that of the oldest use.

    touched(score or None, lookup, given) is the score after a use; scores never go down.
    """

    def __init__(self, capacity: int, touched: Callable[[float | None, int, int], float]):
        self.capacity, self.touched, self.hits = capacity, touched, 0
        self.kept: dict[int, tuple[float, int]] = {}
        self.heap: list[tuple[float, int, int]] = []
        self.clock = 0

    def see(self, key: int, lookup: int, given: int) -> None:
        self.clock += 1
        known = self.kept.get(key)
        if known is not None:
            self.hits += 1
        elif len(self.kept) == self.capacity:
            self._forget_one()
        score = self.touched(None if known is None else known[0], lookup, given)
        self.kept[key] = (score, self.clock)
        heapq.heappush(self.heap, (score, self.clock, key))

    def _forget_one(self) -> None:
        while True:
            score, clock, key = heapq.heappop(self.heap)
            if self.kept.get(key) == (score, clock):  # else an outdated entry
                del self.kept[key]
                return
