// What lives in device memory of a group: the tables as kernels see them, and the
// facts that only the device knows while calls are in flight. Written by kernels
// of one stream, in order; copied to the host after every call that changes them.
#pragma once

#include <cstdint>

#include "core/admit.h"
#include "core/bucket.h"
#include "core/row_init.h"
#include "core/row_layout.h"
#include "core/row_splits.h"
#include "core/score.h"
#include "core/types.h"
#include "table/batch.h"
#include "table/counters.h"
#include "table/table_config.h"

namespace dynemb {

// Written by the host (in stream order) at creation and at growth; read by kernels.
struct TableView {
  IndexView index;
  float* values;
  int64_t stride_floats;
  uint64_t* stamps;    // last claim of each row: epoch << 32 | unique position
  int64_t* free_rows;  // stack of erased rows
  RowLayout layout;
  RowInitializer initializer;
  float initial_state, initial_scalar;
  const float* first_state;  // in their place, behind the embedding: of rules outside of the engine
  float missing_value;
  bool missing_is_initial;

  int64_t row_limit;  // keys that have room
  // Bounded tables; elsewhere there are no scores. By slot, so that those of a bucket
  // are read at once: [num_buckets][kScoresPerBucket].
  uint64_t* scores;
  uint32_t* heads;  // [num_buckets]: lists of a call's new keys; zero between calls
  ScoreKind score;
  uint64_t half_life;    // of decayed scores
  bool evicts;           // in a full table new keys take the rows of others
  EvictedKey* recorded;  // [record_limit]
  int64_t record_limit;
  // Rows that expire, a clock away from their last touch.
  TtlClock ttl_clock;
  uint64_t ttl;
  uint64_t* touches;  // by row; null: scores tell the age
  int64_t* sweeps;    // [record_limit]: which sweep put a key on record, 0: none; or null

  AdmissionRule admission;  // of new keys, in lookups
  SketchView sketch;        // frequency

  DYNEMB_HD float* Row(int64_t row) const { return values + row * stride_floats; }
  // First value of the state at a place of a row.
  DYNEMB_HD float FirstState(int64_t at) const {
    if (first_state != nullptr) return first_state[at - layout.VectorOffset(0)];
    return at < layout.ScalarOffset() ? initial_state : initial_scalar;
  }
};

// Written by kernels.
struct TableState {
  int64_t size;        // keys
  int64_t high_water;  // rows ever taken have numbers below
  int64_t free_count;  // rows on the stack
  // Bounded tables: latest claim of any row that was evicted; evictions on record and
  // those for which there was no place.
  uint32_t last_evicted_epoch;
  int64_t recorded, record_lost;
  uint64_t last_expiry;  // when rows were last looked through, by the clock of their time to live
  int64_t counted;       // ids that the counters of admission have seen since they were halved
  TableCounters counters;

  // Keys that have lost their slots, ever.
  int64_t Erased() const { return counters.erased + counters.evicted + counters.expired; }
};

enum class DeviceError : int32_t {
  kNone = 0,
  kStale,
  kStaleActs,
  kBadLengths,
  kBadSplits,  // error_split says which
  kReleased,
  kBadMoved,
};

struct GroupState {
  int32_t version;
  uint32_t last_lookup_epoch;
  uint32_t last_erase_epoch;  // acts of lookups until then are stale
  int64_t lookups;
  int64_t steps;
  uint64_t last_ids_checksum;
  int32_t last_was_lookup;

  // The first failure since the host last looked; calls after it do nothing until
  // then, and their outputs are poisoned.
  DeviceError error;
  int32_t error_got;
  int32_t error_expected;
  WrongSplit error_split;

  // Of the call being executed.
  int32_t token;       // as given
  int32_t run;         // 1: do the work; 0: leave everything as it is
  int32_t may_replay;  // the token is that of the lookup just done
  // Collected by the kernels of a lookup, reset at the end of every call.
  int32_t bad_call;  // its operands are wrong
  // Row splits while they are checked, zero before and after: the blocks that are done, and of
  // wrong ones ~(list, position), so that the first one is the largest.
  uint32_t checked_blocks;
  uint64_t first_wrong_split;
  uint64_t ids_checksum;
};

// What one call does to one table, gathered by its kernels; zero between calls.
struct CallCounts {
  int32_t unique;    // distinct rows claimed by the probe
  int32_t new_rows;  // distinct new keys
  // Bounded tables, and those with admission: ids without a row. Admission: ids that were not
  // let in. Bounded tables: INT32_MAX - number of the first new key among those
  // of all tables; new keys that got a row, and how many of those took it from another key.
  int32_t missed, not_admitted, first_new, made, evicted;
  unsigned long long padded, found, missing, refused;
};

}  // namespace dynemb
