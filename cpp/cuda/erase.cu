// Forgets keys on the device.
#include <cuda_runtime.h>

#include "cuda/cuda_backend.h"
#include "cuda/device_ops.cuh"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

__global__ void BeginEraseKernel(GroupState* group, const int32_t* token) {
  group->token = *token;
  group->bad_call = 0;
  group->may_replay = 0;
  group->run = group->error == DeviceError::kNone && *token == group->version;
  if (group->error == DeviceError::kNone && group->run == 0) {
    group->error = DeviceError::kStale;
    group->error_got = *token;
    group->error_expected = group->version;
  }
}

__global__ void __launch_bounds__(kThreads)
    EraseKernel(GroupState* group, const TableView* views, TableState* states, int32_t table,
                const Key* keys, const int32_t* count, int64_t capacity) {
  if (group->run == 0) return;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= min(int64_t{*count}, capacity)) return;
  const TableView& view = views[table];
  const Key key = keys[i];
  const SlotRef ref = FindSlotOnDevice(view.index, HashKey(key), key);
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

__global__ void EndEraseKernel(GroupState* group, TableState* states, int32_t table,
                               int32_t* token_out) {
  if (group->run == 0) {
    *token_out = group->token;
    return;
  }
  TableState& state = states[table];
  const int64_t size = state.high_water - state.free_count;
  if (size != state.size) ++group->generation;
  state.size = size;
  group->version = static_cast<int32_t>(static_cast<uint32_t>(group->version) + 1);
  group->last_was_lookup = 0;
  *token_out = group->version;
}

}  // namespace

Status CudaBackend::Erase(const Executor& exec, TokenPair token, const KeyBatch& batch) {
  std::lock_guard<std::mutex> lock(mutex_);
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  DYNEMB_RETURN_IF_ERROR(Poll(exec));
  BeginEraseKernel<<<1, 1, 0, stream>>>(group_, token.in);
  if (batch.capacity > 0) {
    const unsigned blocks = static_cast<unsigned>((batch.capacity + kThreads - 1) / kThreads);
    EraseKernel<<<blocks, kThreads, 0, stream>>>(group_, views_, states_, batch.table, batch.keys,
                                                 batch.count, batch.capacity);
  }
  EndEraseKernel<<<1, 1, 0, stream>>>(group_, states_, batch.table, token.out);
  return EndCall(exec);
}

}  // namespace dynemb
