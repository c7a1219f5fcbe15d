// How a call ends on the device: one block books what was done, then shows the
// state to the host.
#pragma once

#include "cuda/device_state.h"
#include "cuda/snapshots.h"

namespace dynemb {

inline constexpr int kEndThreads = 128;

// All threads of the block that ends the call.
__device__ inline void WriteSnapshot(const SnapshotTarget& target) {
  __syncthreads();
  const volatile uint64_t* state = target.state;
  for (int i = static_cast<int>(threadIdx.x); i < target.count; i += kEndThreads) {
    target.words[i] = state[i];
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();
  *static_cast<volatile uint64_t*>(target.mark) = target.call;
}

// The next version, after a call that changed the group.
__device__ inline void NextVersion(GroupState& group) {
  group.version = static_cast<int32_t>(static_cast<uint32_t>(group.version) + 1);
  group.last_was_lookup = 0;
}

// A call that did not run: what it was given goes back, and its failure is kept.
__device__ inline void EndUndone(GroupState& group, int32_t* token_out) {
  if (group.error == DeviceError::kNone) {
    group.error = DeviceError::kStale;
    group.error_got = group.token;
    group.error_expected = group.version;
  }
  *token_out = group.token;
}

// One thread: nothing of the call is left.
__device__ inline void ResetCall(GroupState& group) {
  group.bad_call = 0;
  group.ids_checksum = 0;
}

// New rows are on the books: of the `asked` ones those that had room.
__device__ inline int64_t BookNewRows(TableState& state, int64_t asked, int64_t room) {
  const int64_t added = asked < room ? asked : room;
  const int64_t reused = added < state.free_count ? added : state.free_count;
  state.size += added;
  state.free_count -= reused;
  state.high_water += added - reused;
  return added;
}

}  // namespace dynemb
