// Scratch of a call that brings new keys to bounded tables.
#pragma once

#include <cstdint>

#include "table/batch.h"

namespace dynemb {

// A new key by its number among those of all tables.
struct OpenKey {
  uint32_t id;
  int32_t call_table;
};

// Scratch of one call.
struct BoundedScratch {
  const uint32_t* outstanding;  // [max_outstanding]: epochs of lookups, 0: none
  int64_t max_outstanding;
  OpenKey* keys;           // [ids], by number
  int64_t* outcomes;       // [ids], by number: a row, kRowRefused, or kOpen - stage
  EvictedKey* evicted;     // [ids], by number; null: nobody wants to know
  int64_t* slots;          // [ids], by id: where the score of its new key lies
  uint32_t* block_counts;  // [blocks]
  uint32_t* left;          // [3]: keys still open after a round, zero at first
  uint32_t lock_epoch;     // later than that of the elections, whose words the locks take
  int lookups;             // that the call counts as
  uint64_t time;
};

// Stage of a key that is open: 0 at first, later the bucket of its path that is next.
inline constexpr int64_t kOpen = -16;

// Low half of the stamp of a row that is claimed but not yet numbered.
inline constexpr uint64_t kNotNumbered = 0xFFFFFFFF;

// Rounds after which keys look whether any victim is left before it is their turn.
inline constexpr int kPatientRounds = 32;

}  // namespace dynemb
