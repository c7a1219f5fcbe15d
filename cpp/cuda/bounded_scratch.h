// Scratch of a call that brings new keys to bounded tables.
#pragma once

#include <cstdint>

#include "table/batch.h"

namespace dynemb {

// A new key by its number among those of all tables.
struct alignas(16) OpenKey {
  Key key;
  uint32_t id;
  int32_t call_table;
};

// Scratch of one call.
struct BoundedScratch {
  const uint32_t* outstanding;  // [max_outstanding]: epochs of lookups, 0: none
  int64_t max_outstanding;
  OpenKey* keys;          // [ids], by number
  int64_t* outcomes;      // [ids], by number: a row, kRowRefused, or kOpen
  uint32_t* next;         // [ids], by number: the next key at the same bucket + 1, 0: none
  EvictedKey* evicted;    // [ids], by number; null: nobody wants to know
  int64_t* slots;         // [ids], by id: where the score of its new key lies
  uint32_t* warp_counts;  // [warps]
  int32_t* unplaced;      // [tables of the call]: new keys that found no place
  uint32_t* left;         // [3]: keys still open after a level
  uint32_t* taken;        // [3]: shares of a level's keys that warps have taken
  int lookups;            // that the call counts as
  uint64_t time;
};

inline constexpr int64_t kOpen = -16;

}  // namespace dynemb
