// A bucket of a bounded table while one thread alone works on it, and its victims.
#pragma once

#include "core/victim.h"
#include "cuda/device_ops.cuh"

namespace dynemb {

struct Victim {
  int slot = -1;  // -1: there is none
  Key key = 0;
  int64_t row = 0;
  uint64_t score = 0;
  uint32_t epoch = 0;  // of its last claim
};

// Reads go past the first-level cache: other threads have had the bucket before.
struct OwnedBucket {
  const TableView& table;
  BucketIndex bucket;
  uint32_t empty;       // slots
  uint32_t candidates;  // slots whose keys may have to go: those that are there at first

  __device__ OwnedBucket(const TableView& view, BucketIndex which) : table(view), bucket(which) {
    empty = LoadedSector::Fresh(&view.index.Sector(which)).Match(0);
    candidates = ~empty & kSlotMask;
  }
  __device__ int64_t ScorePlace(int slot) const {
    return static_cast<int64_t>(bucket) * kScoresPerBucket + slot;
  }

  // A key takes the slot.
  __device__ void Put(int slot, KeyHash hash, Key key, int64_t row, uint64_t score) {
    empty &= ~(1u << slot);
    candidates &= ~(1u << slot);
    __stcg(&table.index.Sector(bucket).tags[slot], hash.Tag());
    __stcg(reinterpret_cast<ulonglong2*>(&table.index.EntryAt({bucket, slot})),
           make_ulonglong2(key, static_cast<unsigned long long>(row)));
    __stcg(table.scores + ScorePlace(slot), score);
  }

  __device__ void MarkOverflow() {
    uint8_t* control = &table.index.Sector(bucket).control;
    __stcg(control, static_cast<uint8_t>(__ldcg(control) | kOverflowMark));
  }

  // FindVictim of core/victim.h; a victim is no candidate any more.
  __device__ Victim NextVictim(uint32_t oldest_pinned) {
    const ulonglong2* scores = reinterpret_cast<const ulonglong2*>(table.scores + ScorePlace(0));
    while (candidates != 0) {
      uint64_t least = ~uint64_t{0};
      uint32_t ties = 0;
      const auto meet = [&](int slot, uint64_t score) {
        if ((candidates >> slot & 1u) == 0 || score > least) return;
        ties = (score == least ? ties : 0u) | 1u << slot;
        least = score;
      };
#pragma unroll 8
      for (int pair = 0; pair < kScoresPerBucket / 2; ++pair) {
        const ulonglong2 two = __ldcg(scores + pair);
        meet(2 * pair, two.x);
        meet(2 * pair + 1, two.y);
      }
      int slot = -1;
      ulonglong2 entry{};
      for (uint64_t hash = 0; ties != 0; ties &= ties - 1) {
        const int other = LowestBit(ties);
        const ulonglong2 both =
            __ldcg(reinterpret_cast<const ulonglong2*>(&table.index.EntryAt({bucket, other})));
        const uint64_t its = HashKey(both.x).bits;
        if (slot >= 0 && its >= hash) continue;
        hash = its;
        slot = other;
        entry = both;
      }
      candidates &= ~(1u << slot);
      const int64_t row = static_cast<int64_t>(Entry{entry.x, entry.y}.Row());
      const uint32_t epoch = static_cast<uint32_t>(__ldcg(table.stamps + row) >> 32);
      if (epoch < oldest_pinned) return Victim{slot, entry.x, row, least, epoch};
    }
    return Victim{};
  }
};

}  // namespace dynemb
