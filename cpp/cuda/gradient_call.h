// Gradients as the host prepares them for the kernels that sort and sum them: of an update,
// or of a collect.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/optimizer/optimizer.h"
#include "cuda/device_state.h"
#include "cuda/params.h"
#include "table/batch.h"

namespace dynemb {

// One feature's gradient in one lookup.
struct GradientParam {
  const int32_t* index;
  const float* weights;
  const void* grads;      // floats, or 16 bits a column: all of a table alike
  float* bag_scales;      // [num_bags], null where not pooled
  const int32_t* merged;  // unique row of the lookup -> of the update; null: same
  int64_t num_ids;
  int64_t bag_length;  // 1 where not pooled
  int64_t first_id;
  int64_t first_unique;  // of the table in the numbering of the update
  int64_t unique_capacity;
  uint32_t first_block;
  int32_t dim;
  const uint32_t* bag_of;  // [num_ids]: of those in bags; null: i / bag_length
  // Bags of equal lengths, whose scales are to be found; 0 of them: there are none.
  int64_t num_bags;
  Combiner combiner;
  uint32_t first_bag_block;
};

// Few go to kernels by value; more lie in device memory.
template <size_t N>
struct GradientListOf {
  GradientParam features[N];
  int count;
};
struct GradientsOnDevice {
  const GradientParam* features;
  int count;
};

// One table's share of an update. Its gradients, sorted by row, are cut into runs of
// equal length; a warp takes as many neighbouring runs as rows fit beside each other.
struct UpdateTable {
  const int64_t* unique_rows;  // [capacity]
  int64_t first_unique;        // in the numbering of the update
  int64_t capacity;
  int32_t table;
  uint32_t first_warp;  // of the table among the warps of a launch
  uint32_t first_run;   // of the table among all runs
  OptimizerKind kind;
};

template <size_t N>
struct UpdateTablesOf {
  UpdateTable tables[N];
  int count;
  uint32_t warps, runs;  // of all tables
};
using UpdateTables = UpdateTablesOf<kMaxCallTables>;

// As WithFew of params.h. on_device: [all.size()], if they are many.
template <class Body>
void WithFew(const std::vector<GradientParam>& all, const GradientParam* on_device,
             const UpdateTables& tables, Body&& body) {
  const int count = static_cast<int>(all.size());
  if (on_device != nullptr) {
    body(GradientsOnDevice{on_device, count}, tables);
    return;
  }
  GradientListOf<kFewFeatures> few_list{};
  UpdateTablesOf<kFewTables> few_tables{};
  few_list.count = count;
  few_tables.count = tables.count;
  few_tables.warps = tables.warps;
  few_tables.runs = tables.runs;
  std::copy(all.begin(), all.end(), few_list.features);
  std::copy(tables.tables, tables.tables + tables.count, few_tables.tables);
  body(few_list, few_tables);
}

struct UpdateScratch {
  GroupState* group;
  const TableView* tables;
  const OptimizerParameters* optimizers;  // [tables of the group]
  const float* learning_rates;            // [tables of the group]
  const int32_t* step;                    // [1]
  uint32_t* counts;                       // [uniques + 1], the last is 0
  uint32_t* offsets;                      // [uniques + 1]: scan of counts
  uint32_t* ranks;                        // [ids]
  uint32_t* sorted;                       // [ids]: id, in the order of rows
  float* partials;                        // [runs, 2, partial_stride]: head and tail sums
  float* row_sums;                        // [uniques, kSums] of wide rows
  double* row_squares;                    // [uniques] of wide rows whose gradients are clipped
  int64_t partial_stride;
  int64_t num_uniques;
};

inline constexpr int kMaxLookups = 128;    // of an update
inline constexpr int kMaxEvicting = 1024;  // of them times tables

// Headers of the lookups, for the check that no row has been given away since.
struct HeaderList {
  const int32_t* headers[kMaxLookups];
  int count;
  // Tables that may have given the rows of a lookup to other keys, and which lookup.
  int32_t evicting[kMaxEvicting];
  int32_t header_of[kMaxEvicting];
  int num_evicting;
};

// Unique row, in the numbering of the update, of id i of a feature; -1: none.
DYNEMB_HD int64_t UniqueOf(const GradientParam& feature, int64_t i) {
  int64_t unique = feature.index[i];
  if (unique < 0 || unique >= feature.unique_capacity) return -1;
  if (feature.merged != nullptr) unique = feature.merged[unique];
  return feature.first_unique + unique;
}

inline constexpr int kSortThreads = 512;
inline constexpr int kIdsPerThread = 4;
inline constexpr int kIdsPerBlock = kSortThreads * kIdsPerThread;
inline constexpr uint32_t kRunLength = 128;  // gradients

// Gradients of one table.
struct TableIds {
  int dim;
  int most;  // columns of a lane, as of ColumnsOfLane
  int64_t ids = 0;
  bool are_16 = false;  // in the columns of the gradients; else floats

  uint32_t Runs() const { return static_cast<uint32_t>((ids + kRunLength - 1) / kRunLength); }
  // Wider than a warp takes at once.
  bool IsWide() const { return dim > 32 * ColumnsOfLane(dim, most); }
};

// All gradients of a call.
struct GradientCall {
  // What is to be done: the lookups, and which of their tables.
  const int32_t* token;
  std::span<const LookupResidual> lookups;
  std::vector<bool> wanted = {};  // [tables of the group]
  // Sums over the columns of wide rows, of which the rule of a table needs so many; and
  // whether it clips gradients.
  std::vector<int> rule_sums = {};  // [tables of the group]
  std::vector<bool> clips = {};     // [tables of the group]
  // Whether the rows that are stepped have columns of 16 bits.
  std::vector<bool> rows_are_16 = {};  // [tables of the group]

  // Of special tables there are few, and fewer kernels: these find gradients in device memory,
  // however few they are, and serve kFewTables at most.
  bool IsSpecial(const UpdateTable& part) const {
    const size_t at = static_cast<size_t>(part.table);
    return clips[at] || rows_are_16[at];
  }

  // As it is prepared.
  std::vector<GradientParam> list = {};
  GradientParam* list_on_device = nullptr;  // the same, if they are many
  UpdateTables parts{};
  std::vector<TableIds> ids_of_part = {};
  std::vector<const int32_t*> filled = {};  // per part, in device memory: how many unique rows
  HeaderList headers{};
  UpdateScratch scratch{};
  bool has_gradients = false;
};

}  // namespace dynemb
