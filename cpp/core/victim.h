// Which entry of a full table makes way for a new key.
#pragma once

#include <cstdint>

#include "core/annotations.h"
#include "core/bucket.h"
#include "core/hash.h"
#include "core/probe.h"
#include "core/types.h"

namespace dynemb {

// Buckets of a new key's path that it asks for a victim, one after the other.
inline constexpr int kVictimBuckets = 2;

// What is known of rows, by row number.
struct RowMarks {
  const uint64_t* stamps;  // epoch of the last claim << 32 | anything
  const uint64_t* scores;
  uint32_t oldest_pinned;  // rows claimed in this epoch or later stay
};

DYNEMB_HD bool IsPinned(const RowMarks& marks, RowIndex row) {
  return static_cast<uint32_t>(marks.stamps[static_cast<int64_t>(row)] >> 32) >=
         marks.oldest_pinned;
}

// Slot of the unpinned entry of least score in a bucket; of equal scores that of the key
// with the smaller hash, which no key owes to the order in which keys came. -1: all of
// them are pinned, or none is there.
DYNEMB_HD int FindVictim(const IndexView& view, BucketIndex bucket, const RowMarks& marks) {
  int victim = -1;
  uint64_t victim_hash = 0;
  uint64_t least = 0;
  uint32_t occupied = ~view.Sector(bucket).Empty() & kSlotMask;
  for (; occupied != 0; occupied &= occupied - 1) {
    const int slot = LowestBit(occupied);
    const Entry& entry = view.EntryAt({bucket, slot});
    const RowIndex row = entry.Row();
    if (IsPinned(marks, row)) continue;
    const uint64_t score = marks.scores[static_cast<int64_t>(row)];
    if (victim >= 0 && score > least) continue;
    const uint64_t its_hash = HashKey(entry.key).bits;
    if (victim < 0 || score < least || its_hash < victim_hash) {
      victim = slot;
      victim_hash = its_hash;
      least = score;
    }
  }
  return victim;
}

}  // namespace dynemb
