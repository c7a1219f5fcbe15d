// A table group in device memory. Each verb is defined in the file of its name.
//
// All verbs of a device are enqueued on one stream by XLA, so device memory is
// ordered for free. The host runs ahead: what it knows of sizes comes from copies of
// the state made after each call, and a bound fills the gap.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/status.h"
#include "cuda/cuda_table.h"
#include "cuda/device_state.h"
#include "cuda/gradient_call.h"
#include "cuda/lookup_call.h"
#include "cuda/params.h"
#include "cuda/snapshots.h"
#include "table/backend.h"

namespace dynemb {

class CudaBackend : public Backend {
 public:
  // On the current device. `first_version` is the token of the new group.
  static Status Create(std::vector<TableConfig> configs, int32_t first_version,
                       std::shared_ptr<Backend>* backend);
  ~CudaBackend() override;

  Status Lookup(const Executor& exec, TokenPair token, const LookupBatch& batch) override;
  Status Find(const Executor& exec, TokenPair token, const FindBatch& batch) override;
  Status Collect(const Executor& exec, TokenPair token, const CollectBatch& batch) override;
  Status Update(const Executor& exec, TokenPair token, const UpdateBatch& batch) override;
  Status Assign(const Executor& exec, TokenPair token, const AssignBatch& batch) override;
  Status Erase(const Executor& exec, TokenPair token, const KeyBatch& batch) override;
  Status CountSteps(const Executor& exec, TokenPair token, int32_t* steps) override;
  Status Get(const GetBatch& batch) override;
  Status Check() override;
  Status Version(int32_t* version) override;
  Status Renew(int32_t* version) override;
  Status Stats(std::vector<TableStats>* stats) override;
  Status EraseBelow(int32_t from, int table, uint64_t score, int32_t* to) override;
  Status Clear(int32_t from, int table, int32_t* to) override;
  Status Shrink(int32_t from, std::vector<Bytes>* freed, int32_t* to) override;
  Status DrainEvicted(int table, EvictedKeys* evicted) override;

  // For tests: without it, one block alone inserts into bounded tables, and lets rows expire.
  static void AllowCooperativeLaunch(bool allowed);

 private:
  explicit CudaBackend(std::vector<TableConfig> configs) : Backend(std::move(configs)) {}

  Status Init(int32_t first_version);
  // The device can start all blocks of a launch at once, and may.
  bool LaunchesTogether() const;
  CudaTable& table(int position) { return *tables_[static_cast<size_t>(position)]; }

  // Takes what finished calls reported; the error of one of them is returned once.
  Status Poll(const Executor& exec);
  Status PollOne(const Executor& exec, bool wait, bool* seen);
  // Waits for the device and copies the state now.
  Status ReadState();
  Status ReadVersion(int32_t* version);
  Status StatusOf(const GroupState& state) const;
  Status PassToken(const Executor& exec, TokenPair token) const;
  uint32_t NextEpoch(const Executor& exec);
  // Of host calls that change the group: kStaleState, and what ends them.
  Status CheckVersion(int32_t version);
  Status Forgotten(int position, bool all, int32_t* to);

  // The steps of a lookup; assign shares them.
  Status EnqueueLookup(const Executor& exec, TokenPair token, const LookupBatch& batch,
                       DeviceLookup* call);
  // After a failure of the host in the middle of a call: the next one starts from zeros.
  void ForgetCall(const Executor& exec, const DeviceLookup& call);
  Status PrepareLookup(const Executor& exec, const LookupBatch& batch, DeviceLookup* call);
  // Scratch for the keys of a prepared lookup that ask for admission.
  Status PrepareAdmission(const Executor& exec, DeviceLookup* call);
  // Rows that nobody has touched for longer than they may live go, if it is time to look.
  Status Expire(const Executor& exec, const int32_t* token, const DeviceLookup& call);
  // Looks for wrong row splits, which are an error of the call; is_wrong, if not null, becomes 1
  // as well, also behind an earlier error.
  Status CheckSplits(const Executor& exec, const std::vector<RowSplits>& all, int32_t* is_wrong);
  // Looks for wrong lengths; whether the call has any lengths.
  bool CheckLengths(const Executor& exec, const int32_t* token, const DeviceLookup& call);
  // Room for elections in so many slots.
  Status MakeElections(const Executor& exec, uint64_t slots);
  // Room for the evicted keys of a lookup of so many ids that is asked for them.
  Status MakeKeptEvicted(const Executor& exec, int64_t num_ids);
  Status ReturnEvicted(const Executor& exec, const DeviceLookup& call, const LookupBatch& batch);
  // Time for scores; never goes back.
  uint64_t Now();
  // touches: rows of bounded tables are scored.
  Status Probe(const Executor& exec, const int32_t* token, bool touches, DeviceLookup* call);
  // Room for the call's new keys; fills CallTables::room.
  Status MakeRoom(const Executor& exec, const int32_t* token, DeviceLookup* call);
  Status CountNewKeys(const Executor& exec, const int32_t* token, DeviceLookup* call,
                      std::vector<int64_t>* new_keys);
  // Of the absent keys of a probed call those stay that are let in. counts_only: and
  // nothing is remembered.
  Status Admit(const Executor& exec, bool counts_only, DeviceLookup* call);
  // Deterministic groups: new keys of tables that may refuse them get numbers in their order.
  Status OrderNewKeys(const Executor& exec, const DeviceLookup& call);
  // Absent keys of a probed call become rows.
  Status Insert(const Executor& exec, DeviceLookup* call);
  Status InsertBounded(const Executor& exec, DeviceLookup* call);
  // The rows of a call with inserted keys are as young as can be.
  Status Touch(const Executor& exec, const DeviceLookup& call);
  // Decides whether an update or a collect is to be done, and sorts its gradients by row.
  Status SortGradients(const Executor& exec, GradientCall* call);
  // An update is undone where moved rows are not what was collected; else they are written.
  Status CheckMoved(const Executor& exec, const UpdateBatch& batch);
  void WriteMoved(const Executor& exec, const UpdateBatch& batch);
  // Latest lookups whose rows are pinned until their update.
  int64_t max_outstanding() const { return configs()[0].max_outstanding; }

  std::mutex mutex_;
  std::vector<std::unique_ptr<CudaTable>> tables_;
  std::byte* device_block_ = nullptr;  // all of the following, in one allocation
  GroupState* group_ = nullptr;
  TableState* states_ = nullptr;
  TableView* views_ = nullptr;
  OptimizerParameters* optimizers_ = nullptr;
  Snapshots snapshots_;
  std::vector<std::byte> state_copy_;
  CallCounts* call_counts_ = nullptr;  // [tables]
  uint32_t* outstanding_ = nullptr;    // [max_outstanding]: epochs, 0: none
  MemoryOwner elections_owner_{"scratch for lookups", -1};
  GrowableDeviceBuffer elections_{&elections_owner_, 0.25};
  GrowableDeviceBuffer kept_evicted_{&elections_owner_, 0.25};  // see KeptEvicted
  GrowableDeviceBuffer was_refused_{&elections_owner_, 0.25};   // see AdmitScratch
  uint64_t last_time_ = 0;
  unsigned num_sms_ = 0;      // multiprocessors of the device
  bool cooperative_ = false;  // the device can start all blocks of a launch at once
  uint32_t epoch_ = 0;
  int64_t waits_ = 0;  // as TableCounters::waits
};

}  // namespace dynemb
