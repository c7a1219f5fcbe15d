// Forgets keys on the device.
#include <cuda_runtime.h>

#include "cuda/cuda_backend.h"
#include "cuda/device_ops.cuh"
#include "cuda/end_call.cuh"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

__global__ void BeginEraseKernel(GroupState* group, const int32_t* token) {
  group->token = *token;
  group->run = group->error == DeviceError::kNone && *token == group->version;
}

__global__ void __launch_bounds__(kThreads)
    EraseKernel(GroupState* group, const TableView* views, TableState* states, int32_t table,
                const Key* keys, const int32_t* count, int64_t capacity) {
  if (group->run == 0) return;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= min(int64_t{*count}, capacity)) return;
  const TableView& view = views[table];
  const Key key = keys[i];
  const SlotRef ref = FindOnDevice(view.index, HashKey(key), key).at;
  if (ref.slot < 0) return;
  // Of equal keys one clears the tag, and gives the row back.
  const int shift = 8 * (ref.slot & 3);
  unsigned* word = reinterpret_cast<unsigned*>(&view.index.Sector(ref.bucket)) + (ref.slot >> 2);
  const unsigned before = atomicAnd(word, ~(0xFFu << shift));
  if ((before >> shift & 0xFFu) == 0) return;
  TableState& state = states[table];
  const int64_t at = static_cast<int64_t>(
      atomicAdd(reinterpret_cast<unsigned long long*>(&state.free_count), 1ull));
  view.free_rows[at] = static_cast<int64_t>(view.index.EntryAt(ref).Row());
  atomicAdd(reinterpret_cast<unsigned long long*>(&state.counters.erased), 1ull);
}

__global__ void __launch_bounds__(kEndThreads)
    EndEraseKernel(GroupState* group, TableState* states, int32_t table, uint32_t epoch,
                   int32_t* token_out, SnapshotTarget snapshot) {
  if (threadIdx.x == 0) {
    if (group->run == 0) {
      EndUndone(*group, token_out);
    } else {
      TableState& state = states[table];
      const int64_t size = state.high_water - state.free_count;
      if (size != state.size) group->last_erase_epoch = epoch;
      state.size = size;
      NextVersion(*group);
      *token_out = group->version;
    }
  }
  WriteSnapshot(snapshot);
}

}  // namespace

Status CudaBackend::Erase(const Executor& exec, TokenPair token, const KeyBatch& batch) {
  std::lock_guard<std::mutex> lock(mutex_);
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  DYNEMB_RETURN_IF_ERROR(Poll(exec));
  BeginEraseKernel<<<1, 1, 0, stream>>>(group_, token.in);
  if (batch.capacity > 0) {
    EraseKernel<<<Blocks(batch.capacity), kThreads, 0, stream>>>(
        group_, views_, states_, batch.table, batch.keys, batch.count, batch.capacity);
  }
  SnapshotTarget snapshot;
  DYNEMB_RETURN_IF_ERROR(snapshots_.Reserve(stream, &snapshot));
  EndEraseKernel<<<1, kEndThreads, 0, stream>>>(group_, states_, batch.table, epoch_, token.out,
                                                snapshot);
  return CudaStatus(cudaGetLastError(), "erase");
}

}  // namespace dynemb
