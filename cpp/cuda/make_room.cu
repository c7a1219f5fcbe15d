// Room for the new keys of a call, before it: the host's side. It knows sizes from above,
// and counts only where that may be too much.
#include <cuda_runtime.h>

#include "cuda/call_state.cuh"
#include "cuda/cuda_backend.h"
#include "cuda/end_call.cuh"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

// Calls that may find a table short of room before it gets head-room.
constexpr int kTightCalls = 4;
// Batches of new keys that a table with head-room takes beyond what is confirmed, so
// that as many calls may be in flight.
constexpr int kHeadRoomBatches = 4;

// With fewer calls in flight the device may come to stand while the host waits: the
// lookup and the update of one step.
constexpr int64_t kBusyCalls = 2;

// New keys of bounded tables, whose elections end with the probe or with their admission;
// those of others have been counted by then.
template <class List>
__global__ void __launch_bounds__(kThreads)
    CountNewKernel(const __grid_constant__ List list, LookupScratch scratch) {
  const FeatureParam& feature = FeatureOfBlock(list);
  if (scratch.tables[feature.table].scores == nullptr || !Runs(*scratch.group)) return;
  const int64_t i = int64_t{blockIdx.x - feature.first_block} * kThreads + threadIdx.x;
  const int64_t id = feature.first_id + i;
  const int64_t code = i < feature.num_ids ? scratch.rows[id] : kRowPadded;
  const bool brings =
      IsSlot(code) && static_cast<int64_t>(scratch.elections[kSlot - code] & 0xFFFFFFFFu) == id;
  BlockTakeOfTable(brings, feature.call_table, feature.call_table, scratch.counts,
                   &CallCounts::new_rows);
}

// After a pass that only counted.
__global__ void ResetCallKernel(LookupScratch scratch, int num_tables) {
  for (int t = 0; t < num_tables; ++t) scratch.counts[t] = CallCounts{};
  ResetCall(*scratch.group);
}

}  // namespace

Status CudaBackend::CountNewKeys(const Executor& exec, const int32_t* token, DeviceLookup* call,
                                 std::vector<int64_t>* new_keys) {
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  DYNEMB_RETURN_IF_ERROR(Probe(exec, token, false, call));
  DYNEMB_RETURN_IF_ERROR(Admit(exec, true, call));
  for (size_t l = 0; call->is_bounded && l < call->lists.size(); ++l) {
    if (call->blocks[l] == 0) continue;
    WithFewFeatures(call->lists[l], [&](const auto& list) {
      CountNewKernel<<<call->blocks[l], kThreads, 0, stream>>>(list, call->scratch);
    });
  }
  std::vector<CallCounts> counts(static_cast<size_t>(call->tables.count));
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(counts.data(), call->scratch.counts,
                                              counts.size() * sizeof(CallCounts),
                                              cudaMemcpyDeviceToHost, stream));
  // All snapshots have been seen, but rows may have expired since.
  std::vector<TableState> states(tables_.size());
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(
      states.data(), states_, states.size() * sizeof(TableState), cudaMemcpyDeviceToHost, stream));
  ResetCallKernel<<<1, 1, 0, stream>>>(call->scratch, call->tables.count);
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream));
  ++waits_;
  for (const CallCounts& one : counts) new_keys->push_back(one.new_rows);
  for (size_t t = 0; t < tables_.size(); ++t) {
    tables_[t]->Confirmed(snapshots_.last_call(), states[t].size, states[t].Erased());
  }
  return Status();
}

Status CudaBackend::MakeRoom(const Executor& exec, const int32_t* token, DeviceLookup* call) {
  auto fits = [&](size_t t) {
    const CudaTable& one = table(call->tables.table[t]);
    return one.Bound() + call->ids_of_table[t] <= one.Capacity();
  };
  std::vector<size_t> tight;
  for (size_t t = 0; t < call->ids_of_table.size(); ++t) {
    call->tables.room[t] = call->ids_of_table[t];
    DYNEMB_RETURN_IF_ERROR(table(call->tables.table[t]).TidyIfWorn(exec.stream));
    if (fits(t)) continue;
    // At its bounds a table that need not fail takes what comes, and the device knows how
    // many free rows there are.
    if (table(call->tables.table[t]).IsAtItsBounds() &&
        table(call->tables.table[t]).config().on_full != OnFull::kError) {
      continue;
    }
    // A table that is short of room again and again gets head-room.
    CudaTable& one = table(call->tables.table[t]);
    const int64_t head_room = kHeadRoomBatches * call->ids_of_table[t];
    // When it does depends on how far the device has come: in a deterministic group that must
    // not say which keys fit, or which go.
    const bool may_have_it = !one.config().deterministic ||
                             (one.config().max_bytes < 0 && one.config().score == ScoreKind::kNone);
    if (may_have_it && one.confirmed_size() + head_room > one.Capacity() &&
        one.tight_calls++ >= kTightCalls) {
      const RoomPlan plan = PlanRoom(one.config(), one.room(), one.confirmed_size(), head_room);
      one.tight_calls = 0;
      if (plan.granted >= head_room) {
        const Status grown = one.Grow(exec.stream, plan.room, views_ + call->tables.table[t]);
        // Without memory for it the call goes on: it may need none.
        if (!grown.ok() && grown.code() != StatusCode::kMemory) return grown;
      }
    }
    // The oldest calls say how much of their room they did not need. While others are
    // behind them, the device has work and the host merely runs less far ahead.
    while (!fits(t) && !snapshots_.empty()) {
      if (snapshots_.outstanding() <= kBusyCalls) ++waits_;
      bool seen = false;
      DYNEMB_RETURN_IF_ERROR(PollOne(exec, true, &seen));
    }
    if (!fits(t)) tight.push_back(t);
  }
  if (tight.empty()) return Status();

  std::vector<int64_t> new_keys;
  for (size_t t : tight) {
    CudaTable& one = table(call->tables.table[t]);
    if (new_keys.empty()) {
      DYNEMB_RETURN_IF_ERROR(CountNewKeys(exec, token, call, &new_keys));
    }
    const RoomPlan plan = PlanRoom(one.config(), one.room(), one.confirmed_size(), new_keys[t]);
    if (plan.granted < new_keys[t] && one.config().on_full == OnFull::kError) {
      return FullTable(one.config(), one.room(), one.confirmed_size(), new_keys[t], plan.granted);
    }
    const Room now = one.room();
    if (plan.room.num_buckets != now.num_buckets || plan.room.row_capacity != now.row_capacity) {
      DYNEMB_RETURN_IF_ERROR(one.Grow(exec.stream, plan.room, views_ + call->tables.table[t]));
    }
  }
  return Status();
}

void CudaBackend::ForgetCall(const Executor& exec, const DeviceLookup& call) {
  if (call.scratch.counts == nullptr) return;
  ResetCallKernel<<<1, 1, 0, static_cast<cudaStream_t>(exec.stream)>>>(call.scratch,
                                                                       call.tables.count);
}

}  // namespace dynemb
