// A table group in host memory. Each verb is defined in the file of its name.
#pragma once

#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <vector>

#include "core/status.h"
#include "cpu/cpu_table.h"
#include "table/backend.h"

namespace dynemb {

// Thread-safe: XLA may call from several threads. Verbs that change the group
// exclude all others; finds share.
class CpuBackend : public Backend {
 public:
  // `first_version` is the token of the new group.
  static Status Create(std::vector<TableConfig> configs, int32_t first_version,
                       std::shared_ptr<Backend>* backend);

  Status Lookup(const Executor& exec, TokenPair token, const LookupBatch& batch) override;
  Status Find(const Executor& exec, TokenPair token, const FindBatch& batch) override;
  Status Collect(const Executor& exec, TokenPair token, const CollectBatch& batch) override;
  Status Update(const Executor& exec, TokenPair token, const UpdateBatch& batch) override;
  Status Assign(const Executor& exec, TokenPair token, const AssignBatch& batch) override;
  Status Erase(const Executor& exec, TokenPair token, const KeyBatch& batch) override;
  Status CountSteps(const Executor& exec, TokenPair token, int32_t* steps) override;
  Status Get(const GetBatch& batch) override;
  Status Check() override { return Status(); }  // the host fails in the call itself
  Status Version(int32_t* version) override;
  Status Renew(int32_t* version) override;
  Status Stats(std::vector<TableStats>* stats) override;
  Status EraseBelow(int32_t from, int table, uint64_t score, int32_t* to) override;
  Status Clear(int32_t from, int table, int32_t* to) override;
  Status Shrink(int32_t from, std::vector<Bytes>* freed, int32_t* to) override;
  Status DrainEvicted(int table, EvictedKeys* evicted) override;

 private:
  explicit CpuBackend(std::vector<TableConfig> configs) : Backend(std::move(configs)) {}

  CpuTable& table(int position) { return *tables_[static_cast<size_t>(position)]; }
  Status CheckToken(int32_t token) const;
  // A find may use an older token of this group, not one of elsewhere.
  Status CheckFindToken(int32_t token) const;
  // As CheckToken, but lets the repetition of the last lookup pass: *replay.
  Status CheckLookupToken(int32_t token, uint64_t ids_checksum, bool* replay) const;
  // Whether the rows that a lookup names are still its keys'.
  Status CheckLookup(const LookupResidual& lookup) const;
  // An epoch that no stamp carries yet, for one pass over rows.
  uint32_t NextEpoch();
  // The same for a new lookup, which is outstanding until its update comes or
  // max_outstanding later lookups do.
  uint32_t NextLookup();
  // Rows claimed in this epoch or later are pinned; `current` is of the batch at hand.
  uint32_t OldestPinned(uint32_t current) const {
    return outstanding_.empty() ? current : outstanding_.front().epoch;
  }
  // Rows were freed: acts of all lookups so far are stale.
  void ForgetLookups() { last_erase_epoch_ = epoch_; }
  // Ends a verb that changed the group.
  void Advance(TokenPair token);

  std::shared_mutex mutex_;
  std::vector<std::unique_ptr<CpuTable>> tables_;
  uint32_t first_version_ = 0;
  uint32_t version_ = 0;  // wraps; shown to the outside as int32
  int64_t steps_ = 0;     // updates done
  uint32_t epoch_ = 0;    // of the latest pass over rows
  uint32_t last_erase_epoch_ = 0;
  uint32_t last_lookup_epoch_ = 0;
  struct Outstanding {
    uint32_t epoch;
    int64_t number;  // of the lookup, from 1
  };
  std::vector<Outstanding> outstanding_;  // ascending
  int64_t lookups_ = 0;
  bool last_was_lookup_ = false;
  uint64_t last_ids_checksum_ = 0;
};

}  // namespace dynemb
