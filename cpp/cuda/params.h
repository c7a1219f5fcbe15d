// Parameters of kernels that are shared between files.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device_state.h"
#include "table/batch.h"

namespace dynemb {

// Columns that a lane takes at once of rows of `dim`, at most `most`.
DYNEMB_HD int ColumnsOfLane(int dim, int most) { return dim % most == 0 ? most : 1; }

// One feature of a call.
struct FeatureParam {
  const void* keys;
  const int32_t* lengths;
  const uint8_t* mask;
  const float* weights;
  const uint64_t* scores;  // null: none are given
  void* rows_out;          // null: the call returns no rows
  int32_t* index_out;      // null in a find
  int64_t num_ids;
  int64_t num_outputs;  // rows returned: ids, or bags where pooled
  int64_t bag_length;
  int64_t first_id;      // of the feature among all ids of the call, those of a table side by side
  uint32_t first_block;  // of the feature among the blocks of a launch
  int32_t table;
  int32_t call_table;  // position of the table among those of the call
  KeyFormat format;
  Padding padding;
  Combiner combiner;
  bool is_gated;         // ids without a row wait for their admission
  bool are_16;           // the columns of the table's rows are of 16 bits
  RowType output_type;   // of rows_out: floats, or that of the table's rows
  int32_t bags_of_warp;  // where they are pooled, and of one length
  // Where padding is kSplits: [groups, group_bags + 1], bag_length is the ids of a group, and
  // first_chunk that of the feature among all that the call pools by splits.
  const int32_t* row_splits;
  int64_t group_bags;
  int64_t first_chunk;
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
  int64_t first_id[N];         // of them among all ids of the call
  int64_t room[N];             // new rows that have room, as far as the host knows
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
    few.first_id[i] = tables.first_id[i];
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

// What the row array holds beside row numbers. Of ids whose keys have no row yet:
//   kNewRow - n   brings the new key number n of its table
//   kSameKey - i  its key is that of id i, which brings it
//   kSlot - s     bounded tables, and before admission: has met the ids of its key in election s
//   kMadeRow - r  bounded tables, in the end: has brought its key, which has row r
inline constexpr int64_t kRowPadded = kPadded;
inline constexpr int64_t kRowRefused = kRefused;
inline constexpr int64_t kNewRow = -16;
inline constexpr int64_t kSameKey = -(int64_t{1} << 40);
inline constexpr int64_t kSlot = -(int64_t{1} << 41);
inline constexpr int64_t kMadeRow = -(int64_t{1} << 50);
DYNEMB_HD bool IsNewRow(int64_t code) { return code <= kNewRow && code > kSameKey; }
DYNEMB_HD bool IsSameKey(int64_t code) { return code <= kSameKey && code > kSlot; }
DYNEMB_HD bool IsSlot(int64_t code) { return code <= kSlot && code > kMadeRow; }
DYNEMB_HD bool IsMadeRow(int64_t code) { return code <= kMadeRow; }

// Scratch and state of one lookup; all in device memory. counts are zero between calls.
struct LookupScratch {
  GroupState* group;
  const TableView* tables;
  TableState* states;  // [tables of the group]
  CallCounts* counts;  // [tables of the call]
  int64_t* rows;       // [ids]
  Key* new_keys;       // [ids]: of those whose key has no row yet, where somebody asks
  // [ids]: of ids that have brought their keys to bounded tables, the place among unique rows.
  uint32_t* made_numbers;
  // Where ids of one absent key meet: epoch << 32 | the id that brings it. Words of
  // earlier epochs are empty, so nobody clears them.
  uint64_t* elections;  // [election_mask + 1]
  uint32_t election_mask;
  uint32_t epoch;
};

}  // namespace dynemb
