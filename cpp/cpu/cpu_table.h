// One table in host memory: index, rows, configuration and counters together.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/hash.h"
#include "core/row_init.h"
#include "core/status.h"
#include "core/types.h"
#include "cpu/cpu_index.h"
#include "cpu/init_row.h"
#include "cpu/row_pool.h"
#include "memory/scratch.h"
#include "table/backend.h"
#include "table/growth.h"

namespace dynemb {

// Arrays that the verbs of one table reuse from call to call.
struct TableScratch {
  Scratch<int64_t> rows;       // lookup: row of each id
  Scratch<int64_t> merged;     // update: unique rows over several lookups
  Scratch<int32_t> positions;  // update: unique row of each lookup's unique row
};

class CpuTable {
 public:
  explicit CpuTable(const TableConfig& config)
      : config_(config), layout_(config.Layout()), pool_(layout_) {}

  // Room for the configured first rows.
  Status Init();

  // Makes room for as many of `new_rows` as the budget allows; *granted says how
  // many. kTableFull under on_full="error" if not all; kMemory. Either way no
  // key, row or counter has changed.
  Status MakeRoom(int64_t new_rows, int64_t* granted);

  // Row of a key, new with initial state columns but an embedding not yet
  // written if it was absent; *inserted tells. Call after MakeRoom.
  RowIndex FindOrInsert(KeyHash hash, Key key, bool* inserted);

  // Writes the first value of a row.
  void InitEmbedding(RowIndex row, Key key) {
    InitRowOnHost(config_.initializer, key, layout_.dim, Row(row));
  }
  void InitState(RowIndex row);

  // What a key without a row looks like: [dim].
  void FillMissing(Key key, float* out) const;

  bool Erase(Key key);

  float* Row(RowIndex row) const { return pool_.Row(row); }
  const IndexView& index() const { return index_.view(); }
  RowPool& pool() { return pool_; }
  const TableConfig& config() const { return config_; }
  const RowLayout& layout() const { return layout_; }
  TableScratch& scratch() { return scratch_; }
  TableStats Stats() const;

  TableCounters counters;  // under the group's exclusive lock
  // Counted by finds, which share the group.
  std::atomic<int64_t> found{0}, missing{0}, padded{0};

 private:
  TableConfig config_;
  RowLayout layout_;
  CpuIndex index_;
  RowPool pool_;
  TableScratch scratch_;
};

}  // namespace dynemb
