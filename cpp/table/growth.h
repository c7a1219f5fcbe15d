// How large a table becomes before a call that brings new rows. Pure
// arithmetic, the same for every backend.
#pragma once

#include <cstdint>

#include "core/bucket.h"
#include "core/status.h"
#include "core/types.h"
#include "table/table_config.h"

namespace dynemb {

// Bytes that one row takes beside the index: its numbers and its stamp.
inline Bytes RowBytes(const TableConfig& config) {
  return config.Layout().StrideBytes() + static_cast<Bytes>(sizeof(uint64_t));
}

// Bytes of one bucket; of a bounded table with its scores, the last touches of one whose
// rows expire, and the head of a list. (Touches, and in host memory scores, lie beside the
// rows, and take less.)
inline Bytes BucketBytes(const TableConfig& config) {
  if (config.score == ScoreKind::kNone) return kBytesPerBucket;
  const Bytes words = static_cast<Bytes>(kScoresPerBucket * sizeof(uint64_t));
  return kBytesPerBucket + (config.StoresTouches() ? 2 : 1) * words +
         static_cast<Bytes>(sizeof(uint32_t));
}

// Rows that `num_buckets` buckets may hold at the load limit; at least 1.
int64_t RowLimit(uint64_t num_buckets, double max_load);

struct Room {
  uint64_t num_buckets;
  int64_t row_capacity;
};

// Bytes of the budget that `room` uses.
Bytes RoomBytes(const TableConfig& config, const Room& room);

struct RoomPlan {
  Room room;        // what to grow to, never smaller than what is there
  int64_t granted;  // of the new rows asked for; fewer only if the budget ends
};

// kTableFull: `new_rows` came and `granted` of them fit.
Status FullTable(const TableConfig& config, const Room& now, int64_t rows, int64_t new_rows,
                 int64_t granted);

// Room for `rows` present and `new_rows` more. The index doubles as often as the
// load limit asks; rows grow by an eighth or by what is needed, whichever is more;
// under a budget by what is needed, and never beyond it; never beyond max_rows.
RoomPlan PlanRoom(const TableConfig& config, const Room& now, int64_t rows, int64_t new_rows);

// The room of a new table; kConfig if max_bytes and initial_rows cannot go together.
Status CheckFirstRoom(const TableConfig& config, RoomPlan* plan);

}  // namespace dynemb
