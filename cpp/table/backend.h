// The verbs of a table group on one device.
#pragma once

#include <cstdint>
#include <vector>

#include "core/status.h"
#include "table/batch.h"
#include "table/counters.h"
#include "table/executor.h"
#include "table/table_config.h"

namespace dynemb {

struct TableStats {
  TableCounters counters;
  int64_t rows;
  int64_t capacity;  // slots
  Bytes index_bytes;
  Bytes row_bytes;
  Bytes admission_bytes = 0;
};

// A token is the group's version. A verb that changes the group takes the
// current one and returns the next; with any other it fails with kStaleState.
// Every verb either does all of its work or leaves the group as it was.
struct TokenPair {
  const int32_t* in;
  int32_t* out;
};

// How far Renew moves: more than programs can be queued.
inline constexpr uint32_t kRenewStep = 1u << 16;

// kTooManyOutstanding: acts whose rows the table keeps no longer, and may have given away.
Status ReleasedLookup(const TableConfig& config);
// kStaleState: acts whose rows may have gone to other keys by erasure, or have moved.
Status StaleActs();
// kInvalidArgument: row splits of a Ragged.
Status WrongRowSplits(const WrongSplit& wrong);
// kInvalidArgument: MovedRows of a table.
Status WrongMovedRows(const TableConfig& config);

class Backend {
 public:
  virtual ~Backend() = default;

  virtual Status Lookup(const Executor& exec, TokenPair token, const LookupBatch& batch) = 0;
  virtual Status Find(const Executor& exec, TokenPair token, const FindBatch& batch) = 0;
  // Gradients and rows for optimizers that run outside of the engine; changes nothing,
  // and Update takes the same token.
  virtual Status Collect(const Executor& exec, TokenPair token, const CollectBatch& batch) = 0;
  virtual Status Update(const Executor& exec, TokenPair token, const UpdateBatch& batch) = 0;
  virtual Status Assign(const Executor& exec, TokenPair token, const AssignBatch& batch) = 0;
  virtual Status Erase(const Executor& exec, TokenPair token, const KeyBatch& batch) = 0;

  // Writes the number of updates done: [1].
  virtual Status CountSteps(const Executor& exec, TokenPair token, int32_t* steps) = 0;

  // Host calls; the caller has waited for the token.
  virtual Status Get(const GetBatch& batch) = 0;
  // The failure that a finished call has left on a device, once.
  virtual Status Check() = 0;
  virtual Status Version(int32_t* version) = 0;
  // Moves the version far ahead: programs that are still queued become stale, and
  // the new version holds. Reports no earlier failure.
  virtual Status Renew(int32_t* version) = 0;
  virtual Status Stats(std::vector<TableStats>* stats) = 0;

  // The first three change the group, from version `from` to *to.
  virtual Status EraseBelow(int32_t from, int table, uint64_t score, int32_t* to) = 0;
  virtual Status Clear(int32_t from, int table, int32_t* to) = 0;
  // Gives memory back that the tables do not need; freed: bytes per table. Rows may move.
  virtual Status Shrink(int32_t from, std::vector<Bytes>* freed, int32_t* to) = 0;
  // Moves what has been recorded since the last call out of the table.
  virtual Status DrainEvicted(int table, EvictedKeys* evicted) = 0;

  const std::vector<TableConfig>& configs() const { return configs_; }

 protected:
  explicit Backend(std::vector<TableConfig> configs) : configs_(std::move(configs)) {}

 private:
  std::vector<TableConfig> configs_;
};

}  // namespace dynemb
