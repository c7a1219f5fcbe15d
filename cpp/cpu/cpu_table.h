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

// Low half of the stamp of a row that is claimed but not yet numbered.
inline constexpr uint32_t kUnnumbered = 0xFFFFFFFF;

class CpuTable {
 public:
  explicit CpuTable(const TableConfig& config)
      : config_(config),
        layout_(config.Layout()),
        pool_(layout_, config.score != ScoreKind::kNone) {}

  // Room for the configured first rows.
  Status Init();

  // Makes room for as many of `new_rows` as budget and max_rows allow; *granted says
  // how many. kTableFull under on_full="error" if not all; kMemory. Either way no
  // key, row or counter has changed.
  Status MakeRoom(int64_t new_rows, int64_t* granted);

  // Row of a key, new with initial state columns but an embedding not yet
  // written if it was absent; *inserted tells. Call after MakeRoom.
  RowIndex FindOrInsert(KeyHash hash, Key key, bool* inserted);

  // The same for a key that is absent from a full table: the row of the key that
  // makes way, or kNoRow if none may.
  RowIndex EvictAndInsert(KeyHash hash, Key key, uint32_t oldest_pinned);

  // Of bounded tables. Pin: the row is of the batch `epoch`, without a number in it
  // yet. Score: an id has touched the row, which is worth `value` (see TouchedScore).
  void Pin(RowIndex row, uint32_t epoch) {
    pool_.stamps()[static_cast<int64_t>(row)] = uint64_t{epoch} << 32 | kUnnumbered;
  }
  void PinNew(RowIndex row, uint32_t epoch) {
    pool_.scores()[static_cast<int64_t>(row)] = 0;  // was another key's
    Pin(row, epoch);
  }
  void Score(RowIndex row, uint64_t value) {
    uint64_t& score = pool_.scores()[static_cast<int64_t>(row)];
    score = TouchedScore(config_.score, score, value);
  }
  // What a touch is worth now: the step, or the time.
  uint64_t ScoreNow();

  // Writes the first value of a row.
  void InitEmbedding(RowIndex row, Key key);
  // Writes all else of a new row.
  void InitState(RowIndex row, Key key);

  // What a key without a row looks like: [dim].
  void FillMissing(Key key, float* out) const;

  bool keeps_floats() const { return layout_.type == RowType::kFloat32; }
  // The embedding of a row as floats: in the row where it lies there, else in `space`.
  const float* Embedding(const float* row, float* space) const {
    return keeps_floats() ? row : DecodeEmbedding(row, space);
  }
  float* Embedding(float* row, float* space) const {
    return keeps_floats() ? row : DecodeEmbedding(row, space);
  }
  // Floats into a row, rounded to the nearest.
  void SetEmbedding(const float* values, float* row) const;
  // The same of an update, rounded as the table says. Embedding(row, space) may be
  // `values`. step: of the update.
  void UpdateEmbedding(const float* values, int64_t step, float* row) const;

  bool Erase(Key key);
  // Erases what is scored lower; returns how many. The smallest of their rows is the
  // first to be taken again.
  int64_t EraseBelow(uint64_t score);
  void EraseAll();

  bool is_bounded() const { return config_.score != ScoreKind::kNone; }
  // Latest claim of any row that was evicted: acts of earlier epochs hold their rows.
  uint32_t last_evicted_epoch() const { return last_evicted_epoch_; }
  // Epochs start anew.
  void ForgetClaims() {
    pool_.ForgetClaims();
    last_evicted_epoch_ = 0;
  }
  EvictedKeys& evicted() { return evicted_; }

  float* Row(RowIndex row) const { return pool_.Row(row); }
  const IndexView& index() const { return index_.view(); }
  RowPool& pool() { return pool_; }
  const RowPool& pool() const { return pool_; }
  const TableConfig& config() const { return config_; }
  const RowLayout& layout() const { return layout_; }
  TableScratch& scratch() { return scratch_; }
  TableStats Stats() const;

  TableCounters counters;  // under the group's exclusive lock
  // Counted by finds, which share the group.
  std::atomic<int64_t> found{0}, missing{0}, padded{0};

 private:
  float* DecodeEmbedding(const float* row, float* space) const;
  Status Full(const Room& now, int64_t new_rows, int64_t granted) const;

  TableConfig config_;
  RowLayout layout_;
  CpuIndex index_;
  RowPool pool_;
  TableScratch scratch_;
  EvictedKeys evicted_;
  uint32_t last_evicted_epoch_ = 0;
  uint64_t last_time_ = 0;  // clocks may be set back
};

}  // namespace dynemb
