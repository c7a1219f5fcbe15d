// One table in host memory: index, rows, configuration and counters together.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "core/hash.h"
#include "core/row_init.h"
#include "core/status.h"
#include "core/types.h"
#include "cpu/admit.h"
#include "cpu/cpu_index.h"
#include "cpu/init_row.h"
#include "cpu/row_pool.h"
#include "memory/scratch.h"
#include "table/backend.h"
#include "table/growth.h"

namespace dynemb {

// Arrays that the verbs of one table reuse from call to call.
struct TableScratch {
  Scratch<int64_t> rows;            // lookup: row of each id
  Scratch<int64_t> merged;          // update: unique rows over several lookups
  Scratch<int32_t> positions;       // update: unique row of each lookup's unique row
  std::vector<EvictedKey> evicted;  // by the last lookup, if it was asked: a replay repeats it
};

// Low half of the stamp of a row that is claimed but not yet numbered.
inline constexpr uint32_t kUnnumbered = 0xFFFFFFFF;

// A new key, and what became of it.
struct NewKey {
  Key key;
  RowIndex row = kNoRow;
  bool has_evicted = false;
  EvictedKey evicted{};  // who made way
};

struct BoundedInsert {
  int64_t granted;  // keys that get rows of their own, the first ones
  bool evicts;      // the others take those of other keys
  uint32_t epoch;   // of the batch
  uint32_t oldest_pinned;
};

class CpuTable {
 public:
  explicit CpuTable(const TableConfig& config)
      : config_(config),
        layout_(config.Layout()),
        pool_(layout_, config.score != ScoreKind::kNone, config.StoresTouches()),
        admitter_(config.admission, config.admission_counters) {}

  // Room for the configured first rows, and for the counters of admission.
  Status Init();

  // Makes room for as many of `new_rows` as budget and max_rows allow; *granted says
  // how many. kTableFull under on_full="error" if not all; kMemory. Either way no
  // key, row or counter has changed.
  Status MakeRoom(int64_t new_rows, int64_t* granted);

  // Row of a key, new with initial state columns but an embedding not yet
  // written if it was absent; *inserted tells. Call after MakeRoom.
  RowIndex FindOrInsert(KeyHash hash, Key key, bool* inserted);

  // Of a bounded table: rows for keys that are absent, one by one (docs/eviction.md);
  // kNoRow for those that are refused. They are pinned; their values are not yet written.
  void InsertAll(const BoundedInsert& call, std::span<NewKey> keys);

  // Of bounded tables. Pin: the row is of the batch `epoch`, without a number in it
  // yet. Score: an id has touched the row, which is worth `value` (see TouchedScore) at
  // `time` by the clock of the time to live.
  void Pin(RowIndex row, uint32_t epoch) {
    pool_.stamps()[static_cast<int64_t>(row)] = uint64_t{epoch} << 32 | kUnnumbered;
  }
  void PinNew(RowIndex row, uint32_t epoch) {
    pool_.scores()[static_cast<int64_t>(row)] = 0;  // was another key's
    Pin(row, epoch);
  }
  void Score(RowIndex row, uint64_t value, uint64_t time) {
    uint64_t& score = pool_.scores()[static_cast<int64_t>(row)];
    score = TouchedScore(config_.score, score, value);
    if (config_.StoresTouches()) pool_.touches()[static_cast<int64_t>(row)] = time;
  }
  // What a touch is worth now: the step, the time, or its weight.
  uint64_t ScoreNow();
  // Now by the clock of the time to live.
  uint64_t TtlNow();

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
  // Erases what is scored lower; returns how many.
  int64_t EraseBelow(uint64_t score);
  void EraseAll();
  // Before the next training lookup: forgets rows whose last touch is longer ago than
  // they may live, unless they are pinned. Looks once an eighth of that time.
  void Expire(uint32_t oldest_pinned);

  // Gives memory that a new table of these rows would not have back. Rows may move.
  void Shrink();

  bool is_bounded() const { return config_.score != ScoreKind::kNone; }
  // Latest claim of any row that was evicted or has expired: acts of earlier epochs hold their
  // rows.
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
  Admitter& admitter() { return admitter_; }
  const TableConfig& config() const { return config_; }
  const RowLayout& layout() const { return layout_; }
  TableScratch& scratch() { return scratch_; }
  TableStats Stats() const;

  TableCounters counters;  // under the group's exclusive lock
  // Counted by finds, which share the group.
  std::atomic<int64_t> found{0}, missing{0}, padded{0};

 private:
  // Erases the keys for whose row goes(row) holds and frees their rows. Returns them in
  // the order of their hashes.
  template <class Goes>
  std::vector<Entry> EraseWhere(Goes&& goes);
  // The key loses its row, which keeps its stamp and score for now.
  EvictedKey LeaveRow(Key key, RowIndex row);
  void Record(const EvictedKey& evicted);
  uint64_t Nanoseconds();
  void CloseUpRows();
  float* DecodeEmbedding(const float* row, float* space) const;

  TableConfig config_;
  RowLayout layout_;
  CpuIndex index_;
  RowPool pool_;
  Admitter admitter_;
  TableScratch scratch_;
  EvictedKeys evicted_;
  uint32_t last_evicted_epoch_ = 0;
  uint64_t last_time_ = 0;    // clocks may be set back
  uint64_t last_expiry_ = 0;  // when Expire looked, by the clock of the time to live
};

}  // namespace dynemb
