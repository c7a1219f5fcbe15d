// Parameters of kernels that are shared between files.
#pragma once

#include <cstddef>
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

// Lists go to kernels by value. Launches copy their parameters, so most calls use
// the small size.
inline constexpr int kFewFeatures = 16;
inline constexpr int kMaxFeatures = 128;
template <size_t N>
struct FeatureListOf {
  FeatureParam features[N];
  int count;
};
using FeatureList = FeatureListOf<kMaxFeatures>;

inline constexpr int kFewTables = 16;
inline constexpr int kMaxCallTables = 256;
template <size_t N>
struct CallTablesOf {
  int64_t* unique_rows[N];     // an output: [ids of the table]
  int64_t unique_capacity[N];  // ids of the table
  int64_t room[N];             // new rows that have room
  int32_t table[N];            // position in the group
  int count;
};
using CallTables = CallTablesOf<kMaxCallTables>;

// The first elements of a list in a smaller one.
template <size_t N>
FeatureListOf<N> Few(const FeatureList& list) {
  FeatureListOf<N> few{};
  few.count = list.count;
  for (int i = 0; i < list.count; ++i) few.features[i] = list.features[i];
  return few;
}
template <size_t N>
CallTablesOf<N> Few(const CallTables& tables) {
  CallTablesOf<N> few{};
  few.count = tables.count;
  for (int i = 0; i < tables.count; ++i) {
    few.unique_rows[i] = tables.unique_rows[i];
    few.unique_capacity[i] = tables.unique_capacity[i];
    few.room[i] = tables.room[i];
    few.table[i] = tables.table[i];
  }
  return few;
}

// Calls body(list), or body(tables), in the smallest size that holds it.
template <class Body>
void WithFewFeatures(const FeatureList& list, Body&& body) {
  if (list.count <= kFewFeatures) {
    body(Few<kFewFeatures>(list));
  } else {
    body(list);
  }
}
template <class Body>
void WithFewTables(const CallTables& tables, Body&& body) {
  if (tables.count <= kFewTables) {
    body(Few<kFewTables>(tables));
  } else {
    body(tables);
  }
}

// Calls body(list, tables) with both in the smallest size that holds them.
template <class Body>
void WithFew(const FeatureList& list, const CallTables& tables, Body&& body) {
  if (list.count <= kFewFeatures && tables.count <= kFewTables) {
    body(Few<kFewFeatures>(list), Few<kFewTables>(tables));
  } else {
    body(list, tables);
  }
}

// An id whose key has no row yet.
struct Miss {
  Key key;
  uint32_t id;  // among all ids of the call
  int32_t table;
  int32_t call_table;
  int32_t winner;  // the miss of the same key that inserts it
  int64_t row;     // what the winner got
  float* row_out;  // where its row goes, if it is copied; null: the insertion writes it
};

// What the row array holds beside row numbers; kRowWaits - m: see miss m.
inline constexpr int64_t kRowPadded = kPadded;
inline constexpr int64_t kRowRefused = kRefused;
inline constexpr int64_t kRowWaits = -16;

// Scratch and state of one lookup; all in device memory. counts and miss_count are
// zero between calls.
struct LookupScratch {
  GroupState* group;
  const TableView* tables;
  TableState* states;    // [tables of the group]
  CallCounts* counts;    // [tables of the call]
  int64_t* rows;         // [ids]
  Miss* misses;          // [ids]
  uint32_t* miss_count;  // [1]
  uint32_t miss_mask;
  // Cleared by the first launch of the probe, read by those after it.
  int32_t* miss_slots;  // [miss_mask + 1], miss + 1, 0: empty
  uint32_t epoch;
};

}  // namespace dynemb
