// Forgets many keys at once, and tells which ones had to go: host calls.
#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "cuda/cuda_backend.h"
#include "cuda/device_ops.cuh"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

// One warp a bucket, one lane a slot.
__global__ void __launch_bounds__(kThreads)
    EraseBelowKernel(const TableView* views, TableState* states, int32_t table, uint64_t score) {
  const TableView& view = views[table];
  const uint64_t bucket = (uint64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (bucket >= view.index.num_buckets) return;
  const SlotRef at{BucketIndex{bucket}, Lane()};
  bool goes = false;
  uint8_t* tags = view.index.Sector(at.bucket).tags;
  if (at.slot < kSlotsPerBucket && tags[at.slot] != 0) {
    goes = view.scores[bucket * kScoresPerBucket + static_cast<uint64_t>(at.slot)] < score;
  }
  if (!goes) return;
  tags[at.slot] = 0;
  TableState& state = states[table];
  const unsigned long long place =
      atomicAdd(reinterpret_cast<unsigned long long*>(&state.free_count), 1ull);
  view.free_rows[place] = static_cast<int64_t>(view.index.EntryAt(at).Row());
}

// What both end with: the group has changed.
__global__ void EndForgetKernel(GroupState* group, TableState* states, int32_t table, bool all,
                                uint32_t epoch) {
  TableState& state = states[table];
  const int64_t before = state.size;
  if (all) state.high_water = state.free_count = state.counted = 0;
  state.size = state.high_water - state.free_count;
  state.counters.erased += before - state.size;
  if (state.size != before) group->last_erase_epoch = epoch;
  group->version = static_cast<int32_t>(static_cast<uint32_t>(group->version) + 1);
  group->last_was_lookup = 0;
}

// A sweep puts keys on record in any order: they are told in that of their hashes.
// sweeps: which one it was, 0: none.
void SortSweeps(const std::vector<int64_t>& sweeps, std::vector<EvictedKey>* keys) {
  for (size_t begin = 0, end = 0; begin < keys->size(); begin = end) {
    while (end < keys->size() && sweeps[end] == sweeps[begin]) ++end;
    if (sweeps[begin] == 0) continue;
    const auto first = keys->begin();
    std::sort(first + static_cast<int64_t>(begin), first + static_cast<int64_t>(end),
              [](const EvictedKey& a, const EvictedKey& b) {
                return HashKey(a.key).bits < HashKey(b.key).bits;
              });
  }
}

}  // namespace

Status CudaBackend::CheckVersion(int32_t version) {
  DYNEMB_RETURN_IF_ERROR(ReadState());
  GroupState state = *reinterpret_cast<const GroupState*>(state_copy_.data());
  if (state.version == version) return Status();
  state.error = DeviceError::kStale;
  state.error_got = version;
  state.error_expected = state.version;
  return StatusOf(state);
}

Status CudaBackend::Forgotten(int position, bool all, int32_t* to) {
  EndForgetKernel<<<1, 1>>>(group_, states_, position, all, epoch_);
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  DYNEMB_RETURN_IF_ERROR(ReadState());
  *to = reinterpret_cast<const GroupState*>(state_copy_.data())->version;
  const TableState* states =
      reinterpret_cast<const TableState*>(state_copy_.data() + sizeof(GroupState));
  for (size_t t = 0; t < tables_.size(); ++t) {
    tables_[t]->Confirmed(snapshots_.last_call(), states[t].size, states[t].Erased());
  }
  return Status();
}

Status CudaBackend::EraseBelow(int32_t from, int position, uint64_t score, int32_t* to) {
  std::lock_guard<std::mutex> lock(mutex_);
  DYNEMB_RETURN_IF_ERROR(CheckVersion(from));
  const int64_t lanes = static_cast<int64_t>(table(position).view().index.num_buckets) * 32;
  EraseBelowKernel<<<Blocks(lanes), kThreads>>>(views_, states_, position, score);
  return Forgotten(position, false, to);
}

Status CudaBackend::Clear(int32_t from, int position, int32_t* to) {
  std::lock_guard<std::mutex> lock(mutex_);
  DYNEMB_RETURN_IF_ERROR(CheckVersion(from));
  const IndexView& index = table(position).view().index;
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemset(index.sectors, 0, index.num_buckets * sizeof(TagSector)));
  const SketchView& sketch = table(position).view().sketch;
  if (sketch.num_blocks != 0) {
    DYNEMB_CUDA_RETURN_IF_ERROR(
        cudaMemset(sketch.counters, 0, sketch.num_blocks * kCountersPerBlock));
  }
  return Forgotten(position, true, to);
}

Status CudaBackend::DrainEvicted(int position, EvictedKeys* evicted) {
  std::lock_guard<std::mutex> lock(mutex_);
  DYNEMB_RETURN_IF_ERROR(ReadState());
  const TableState& state =
      reinterpret_cast<const TableState*>(state_copy_.data() + sizeof(GroupState))[position];
  evicted->lost = state.record_lost;
  evicted->keys.resize(static_cast<size_t>(state.recorded));
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemcpy(evicted->keys.data(), table(position).view().recorded,
                                         evicted->keys.size() * sizeof(EvictedKey),
                                         cudaMemcpyDeviceToHost));
  if (table(position).view().sweeps != nullptr && state.recorded > 0) {
    std::vector<int64_t> sweeps(evicted->keys.size());
    const size_t bytes = sweeps.size() * sizeof(int64_t);
    int64_t* on_record = table(position).view().sweeps;
    DYNEMB_CUDA_RETURN_IF_ERROR(
        cudaMemcpy(sweeps.data(), on_record, bytes, cudaMemcpyDeviceToHost));
    DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemset(on_record, 0, bytes));
    SortSweeps(sweeps, &evicted->keys);
  }
  TableState* on_device = states_ + position;
  DYNEMB_CUDA_RETURN_IF_ERROR(
      cudaMemset(&on_device->recorded, 0, sizeof state.recorded + sizeof state.record_lost));
  // XLA's stream does not wait for this one.
  return CudaStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

}  // namespace dynemb
