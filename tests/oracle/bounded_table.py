"""BoundedTable: which key makes way for which, predicted exactly, as dictionaries.

It knows where keys lie: `paths(keys, num_buckets, length)` names the first buckets of their paths.
The rows and their optimizer state are a DictTable's.
"""

from dataclasses import dataclass

import numpy as np

from tests.oracle.admission import Everyone
from tests.oracle.dict_table import DictTable, OracleFullError

SLOTS = 31
LARGEST = 2**64 - 1


def split_mix(key):
    """Hash of a key: SplitMix64 (Steele, Lea, Flood 2014), which breaks ties."""
    bits = (key + 0x9E3779B97F4A7C15) & LARGEST
    bits = ((bits ^ bits >> 30) * 0xBF58476D1CE4E5B9) & LARGEST
    bits = ((bits ^ bits >> 27) * 0x94D049BB133111EB) & LARGEST
    return bits ^ bits >> 31


class OracleStaleError(Exception):
    """Keys were erased since the lookup."""


class OracleOutstandingError(Exception):
    """The lookup was released and rows may have been evicted since."""


@dataclass
class Looked:
    """What a lookup leaves for its update."""

    keys: list
    served: list  # bool: the id has a row
    epoch: int


@dataclass
class Place:
    """What the table knows of a key besides its row's content."""

    bucket: int
    score: int
    epoch: int  # of the last batch that touched it
    touched: int = 0  # training lookups then
    total: int = 0  # decayed sum of its ids


def decayed_weight(lookup, half_life):
    """What an id of a lookup weighs: 2 ** (lookup / half_life), doublings joined by straight lines.

    Returns an integer, the weight times 2**32, its bits below the 33rd cut off.
    """
    period, rest = divmod(lookup, half_life)
    return ((half_life + rest) << 32) // half_life << period


def decayed_sum(total, weight):
    """Their sum, cut off behind its first 33 bits."""
    total += weight
    surplus = max(0, total.bit_length() - 33)
    return total >> surplus << surplus


def decayed_score(total):
    """64 bits that order like the sums: exponent plus one, then 32 binary places."""
    if not total:
        return 0
    exponent = total.bit_length() - 33
    return (exponent + 1 << 32) + (total >> exponent) % 2**32


class BoundedTable:
    """A table of at most `max_rows` keys under a policy: lru, timestamp, lfu, custom or decayed.

    `num_buckets` of each verb is the size of the index after it: how far the index grows is not
    this oracle's business.
    """

    def __init__(
        self,
        contents: DictTable,
        paths,
        *,
        policy,
        on_full,
        max_rows,
        outstanding=4,
        admission=None,
        ttl=None,
        half_life=1,
    ):
        self.contents, self.paths = contents, paths
        self.policy, self.on_full, self.max_rows = policy, on_full, max_rows
        self.max_outstanding = outstanding
        self.ttl, self.last_expiry, self.half_life = ttl, 0, half_life
        self.admission = admission or Everyone()
        self.places = {}
        self.num_buckets = 1
        self.epoch = self.clock = 0
        self.recent, self.outstanding = [], []
        self.last_erase = self.last_evicted = 0
        self.evicted = []
        self.counters = contents.counters

    # Where keys lie.

    def _fill(self):
        fill = {}
        for place in self.places.values():
            fill[place.bucket] = fill.get(place.bucket, 0) + 1
        return fill

    def _first_with_room(self, key):
        fill = self._fill()
        for length in (2, self.num_buckets):
            for bucket in self.paths([key], self.num_buckets, length)[0]:
                if fill.get(bucket, 0) < SLOTS:
                    return bucket
        raise AssertionError("no bucket has room")

    def _home(self, key):
        return self.paths([key], self.num_buckets, 1)[0][0]

    def _place_again(self, displaced):
        for key in displaced:
            self.places[key].bucket = None
        for key in sorted(displaced, key=split_mix):
            self.places[key].bucket = self._first_with_room(key)

    def _displaced(self):
        return [key for key, place in self.places.items() if place.bucket != self._home(key)]

    def _make_room(self, new_keys, num_buckets):
        room = min(new_keys, self.max_rows - len(self.places))
        if room < new_keys and self.on_full == "error":
            raise OracleFullError(f"{len(self.places)} rows and {new_keys} new ones")
        while self.num_buckets < num_buckets:
            displaced = self._displaced()
            self.num_buckets *= 2
            for key, place in self.places.items():
                place.bucket = self._home(key)
            self._place_again(displaced)
        return room

    # Who comes and who goes.

    def _is_pinned(self, place):
        return place.epoch >= (self.outstanding[0] if self.outstanding else self.epoch)

    def _victim(self, bucket):
        candidates = [
            (place.score, split_mix(other), other)
            for other, place in self.places.items()
            if place.bucket == bucket and not self._is_pinned(place)
        ]
        return min(candidates)[2] if candidates else None

    def _forget(self, key):
        self.contents.rows.pop(key)
        return self.places.pop(key)

    def _insert_all(self, keys, room):
        """Distinct new keys: the first `room` of them get a row, the others that of a victim.

        All try their home buckets, in order; then those that are left over their second ones.
        """
        gone, open_keys, level = {}, list(keys), 0
        with_row = set(keys[:room])
        evicts = self.on_full == "evict"
        while open_keys:
            left_over = []
            for key in open_keys:
                bucket = self.paths([key], self.num_buckets, level + 1)[0][level]
                if key in with_row:
                    placed = self._fill().get(bucket, 0) < SLOTS
                else:
                    victim = self._victim(bucket) if evicts else None
                    placed = victim is not None
                    if placed:
                        gone[key] = (victim, self._forget(victim))
                if placed:
                    self.places[key] = Place(bucket, 0, self.epoch)
                    self.contents._insert(key)
                elif key in with_row or (evicts and level + 1 < min(2, self.num_buckets)):
                    left_over.append(key)
            open_keys, level = left_over, level + 1
        for key in keys:
            if key in gone:
                victim, place = gone[key]
                self.evicted.append((victim, place.score))
                self.last_evicted = max(self.last_evicted, place.epoch)
                self.counters["evicted"] += 1

    def _touch(self, key, given):
        place = self.places[key]
        place.touched = self.counters["lookups"]
        if self.policy == "decayed":
            weight = decayed_weight(self.counters["lookups"], self.half_life)
            place.total = decayed_sum(place.total, weight)
            place.score = decayed_score(place.total)
        elif self.policy == "lfu":
            place.score = min(place.score + 1, LARGEST)
        else:
            now = {"lru": self.counters["lookups"], "timestamp": self.clock, "custom": given}
            place.score = max(place.score, now[self.policy])

    def _pin(self, keys):
        for key in keys:
            if key in self.places:
                self.places[key].epoch = self.epoch

    def _expire(self):
        """Before a lookup; `ttl` in lookups. All rows are looked through once an eighth of it."""
        now = self.counters["lookups"] + 1
        if self.ttl is None or now - self.last_expiry < max(1, self.ttl // 8):
            return
        self.last_expiry = now
        going = [
            key
            for key, place in self.places.items()
            if now - place.touched > self.ttl
            and not (self.outstanding and place.epoch >= self.outstanding[0])
        ]
        going.sort(key=split_mix)
        gone = [self._forget(key) for key in going]
        self.evicted += [(key, place.score) for key, place in zip(going, gone, strict=True)]
        self.last_evicted = max([self.last_evicted, *(place.epoch for place in gone)])
        self.counters["expired"] += len(gone)

    # The verbs.

    def lookup(self, keys, num_buckets, scores=None):
        """Returns rows, float64 [n, dim], and what the update needs."""
        keys = DictTable._keys(keys)
        self._expire()
        absent = [key for key in keys if key not in self.places]
        judged = self.admission.judge(absent, self.counters["lookups"] + 1)
        new = dict.fromkeys(key for key, let_in in zip(absent, judged, strict=True) if let_in)
        room = self._make_room(len(new), num_buckets) if new else 0
        self.admission.remember(absent)
        judged = iter(judged)
        absent = set(absent)
        self.epoch += 1
        self.clock += 1
        self.recent = [*self.recent, self.epoch][-self.max_outstanding :]
        self.outstanding = [e for e in [*self.outstanding, self.epoch] if e in self.recent]
        self.counters["lookups"] += 1
        self._pin(keys)
        self._insert_all(list(new), room)
        looked = Looked(keys, [], self.epoch)
        for i, key in enumerate(keys):
            self.counters["ids"] += 1
            admitted = key not in absent or next(judged)
            self.counters["refused_admission"] += not admitted
            served = admitted and key in self.places
            is_first = served and key in new
            if is_first:
                new.pop(key)
            outcome = "inserted" if is_first else "hits" if served else "refused"
            self.counters[outcome] += 1
            looked.served.append(served)
            if served:
                self._touch(key, 0 if scores is None else int(scores[i]))
        served = np.array(looked.served, bool)[:, None]
        return np.where(served, self.contents.values(keys), 0.0), looked

    def apply(self, lookups, grads, **options):
        """One update over several lookups; grads float [lookups, n, dim]."""
        for looked in lookups:
            if looked.epoch <= self.last_erase:
                raise OracleStaleError
            if looked.epoch <= self.last_evicted:
                raise OracleOutstandingError
        keys = [key for looked in lookups for key in looked.keys]
        served = [here for looked in lookups for here in looked.served]
        self.contents.apply(keys, np.concatenate(grads), served, **options)
        for looked in lookups:
            if looked.epoch in self.outstanding:
                self.outstanding.remove(looked.epoch)

    def assign(self, keys, rows, num_buckets):
        """Inserts or overwrites; the last of equal keys stays."""
        keys = DictTable._keys(keys)
        new = list(dict.fromkeys(key for key in keys if key not in self.places))
        room = self._make_room(len(new), num_buckets)
        self.epoch += 1
        self.clock += 1
        self._pin(keys)
        self._insert_all(new, room)
        for key, row in zip(keys, rows, strict=True):
            if key not in self.places:
                self.counters["assign_refused"] += 1
                continue
            self.contents.assign([key], row)
            self._touch(key, 0)

    def erase(self, keys):
        """Forgets the keys."""
        for key in DictTable._keys(keys):
            if key in self.places:
                self._forget(key)
                self.counters["erased"] += 1
                self.last_erase = self.epoch

    def erase_if(self, score_below):
        """Forgets what has a smaller score."""
        self.erase([key for key, place in self.places.items() if place.score < score_below])

    def shrink(self, num_buckets):
        """Buckets of equal low bits become one."""
        self.last_erase = self.epoch
        if num_buckets == self.num_buckets:
            return
        self.num_buckets = num_buckets
        staying = {}
        displaced = []
        for key in sorted(self.places, key=split_mix):
            place, home = self.places[key], self._home(key)
            held = staying.setdefault(home, [])
            if place.bucket % num_buckets == home and len(held) < SLOTS:
                held.append(key)
                place.bucket = home
            else:
                displaced.append(key)
        self._place_again(displaced)

    def clear(self):
        """Forgets all."""
        self.erase(list(self.places))
        self.admission.forget()
