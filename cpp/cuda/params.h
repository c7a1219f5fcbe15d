// Parameters of kernels that are shared between files.
#pragma once

#include <cstdint>

#include "cuda/device_state.h"
#include "table/batch.h"

namespace dynemb {

// One feature of a call.
struct FeatureParam {
  const void* keys;
  const int32_t* lengths;
  const uint8_t* mask;
  const float* weights;
  float* rows_out;
  int32_t* index_out;  // null in a find
  int64_t num_ids;
  int64_t num_outputs;  // rows returned: ids, or bags where pooled
  int64_t bag_length;
  int64_t first_id;      // of the feature among all ids of the call
  uint32_t first_block;  // of the feature among the blocks of a launch
  int32_t table;
  int32_t call_table;  // position of the table among those of the call
  KeyFormat format;
  Padding padding;
  Combiner combiner;
};

// By value: 128 features fit easily into the 32 KiB of kernel parameters.
inline constexpr int kMaxFeatures = 128;
struct FeatureList {
  FeatureParam features[kMaxFeatures];
  int count;
};

// Tables of one call, by value as well.
inline constexpr int kMaxCallTables = 256;
struct CallTables {
  int64_t* unique_rows[kMaxCallTables];  // an output: [ids of the table]
  int64_t unique_capacity[kMaxCallTables];
  int64_t room[kMaxCallTables];   // new rows that have room
  int32_t table[kMaxCallTables];  // position in the group
  int count;
};

// An id whose key has no row yet.
struct Miss {
  Key key;
  uint32_t id;  // among all ids of the call
  int32_t table;
  int32_t call_table;
  int32_t winner;  // the miss of the same key that inserts it
};

// What the row array holds beside row numbers; kRowWaits - m: see miss m.
inline constexpr int64_t kRowPadded = kPadded;
inline constexpr int64_t kRowRefused = kRefused;
inline constexpr int64_t kRowWaits = -16;

// Scratch and state of one lookup; all in device memory.
struct LookupScratch {
  GroupState* group;
  const TableView* tables;
  TableState* states;    // [tables of the group]
  CallCounts* counts;    // [tables of the call]
  int64_t* rows;         // [ids]
  Miss* misses;          // [ids]
  uint32_t* miss_count;  // [1]
  int32_t* miss_slots;   // [miss_mask + 1], -1: empty
  uint32_t miss_mask;
  uint32_t epoch;
};

}  // namespace dynemb
