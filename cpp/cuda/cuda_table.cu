#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/cuda_table.h"
#include "cuda/device_ops.cuh"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

// Doubles in place, one warp a bucket, one lane a slot. Keys of the home bucket
// stay or go to the same slot of bucket + N; overflowed keys are taken out.
__global__ void __launch_bounds__(kThreads)
    SplitKernel(IndexView view, Entry* overflowed, uint32_t* overflowed_count) {
  const uint64_t bucket = (uint64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (bucket >= view.num_buckets) return;
  TagSector& low = view.sectors[bucket];
  TagSector& high = view.sectors[bucket + view.num_buckets];
  const int slot = Lane();
  uint8_t tag = 0;
  if (slot < kSlotsPerBucket) tag = low.tags[slot];
  Entry entry{};
  bool stays = false, goes = false, leaves = false;
  if (tag != 0) {
    entry = LoadEntry(&view.entries[bucket * kSlotsPerBucket + static_cast<uint64_t>(slot)]);
    const KeyHash hash = HashKey(entry.key);
    leaves = hash.Home(view.num_buckets) != BucketIndex{bucket};
    goes = !leaves && hash.Home(2 * view.num_buckets) != BucketIndex{bucket};
    stays = !leaves && !goes;
  }
  if (goes) {
    *reinterpret_cast<ulonglong2*>(&view.entries[(bucket + view.num_buckets) * kSlotsPerBucket +
                                                 static_cast<uint64_t>(slot)]) =
        make_ulonglong2(entry.key, entry.row_and_spare);
  }
  uint8_t* low_bytes = low.tags;  // 31 tags and, last, the control byte
  uint8_t* high_bytes = high.tags;
  low_bytes[slot] = stays ? tag : uint8_t{0};
  high_bytes[slot] = goes ? tag : uint8_t{0};
  if (leaves) overflowed[atomicAdd(overflowed_count, 1u)] = entry;
}

__global__ void __launch_bounds__(kThreads)
    PlaceKernel(IndexView view, const Entry* overflowed, const uint32_t* overflowed_count) {
  const uint32_t count = *overflowed_count;
  for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < count; i += gridDim.x * kThreads) {
    PlaceAbsentOnDevice(view, overflowed[i]);
  }
}

cudaStream_t Stream(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

int64_t CudaTable::Capacity() const {
  return std::min(RowLimit(room_.num_buckets, config_.max_load), room_.row_capacity);
}

Status CudaTable::Grow(void* stream, const Room& room, TableView* view_on_device) {
  const Bytes old_stamps = stamps_.committed();
  DYNEMB_RETURN_IF_ERROR(values_.Commit(room.row_capacity * layout_.StrideBytes()));
  DYNEMB_RETURN_IF_ERROR(stamps_.Commit(room.row_capacity * static_cast<Bytes>(sizeof(uint64_t))));
  DYNEMB_RETURN_IF_ERROR(
      free_rows_.Commit(room.row_capacity * static_cast<Bytes>(sizeof(int64_t))));
  DYNEMB_RETURN_IF_ERROR(sectors_.Commit(static_cast<Bytes>(room.num_buckets) *
                                         static_cast<Bytes>(sizeof(TagSector))));
  DYNEMB_RETURN_IF_ERROR(entries_.Commit(static_cast<Bytes>(room.num_buckets) * kSlotsPerBucket *
                                         static_cast<Bytes>(sizeof(Entry))));
  if (stamps_.committed() > old_stamps) {
    DYNEMB_CUDA_RETURN_IF_ERROR(
        cudaMemsetAsync(stamps_.data() + old_stamps, 0,
                        static_cast<size_t>(stamps_.committed() - old_stamps), Stream(stream)));
  }
  view_.index.sectors = reinterpret_cast<TagSector*>(sectors_.data());
  view_.index.entries = reinterpret_cast<Entry*>(entries_.data());
  if (view_.index.num_buckets == 0) {
    view_.index.num_buckets = room.num_buckets;
    DYNEMB_CUDA_RETURN_IF_ERROR(
        cudaMemsetAsync(sectors_.data(), 0, room.num_buckets * sizeof(TagSector), Stream(stream)));
  }
  while (view_.index.num_buckets < room.num_buckets) {
    DYNEMB_RETURN_IF_ERROR(Split(stream));
    ++growths_;
  }
  view_.values = reinterpret_cast<float*>(values_.data());
  view_.stride_floats = layout_.StrideFloats();
  view_.stamps = reinterpret_cast<uint64_t*>(stamps_.data());
  view_.free_rows = reinterpret_cast<int64_t*>(free_rows_.data());
  view_.layout = layout_;
  view_.initializer = config_.initializer;
  view_.initial_state = config_.optimizer.initial_state;
  view_.initial_scalar = config_.optimizer.initial_scalar;
  view_.missing_value = config_.missing_value;
  view_.missing_is_initial = config_.missing_is_initial;
  room_ = room;
  // From pageable memory: staged at once, so view_ may change afterwards.
  return CudaStatus(
      cudaMemcpyAsync(view_on_device, &view_, sizeof view_, cudaMemcpyHostToDevice, Stream(stream)),
      "cudaMemcpyAsync");
}

Status CudaTable::Split(void* stream) {
  const uint64_t buckets = view_.index.num_buckets;
  void* scratch = nullptr;
  // All keys of a bucket may have overflowed there.
  const size_t list_bytes = buckets * kSlotsPerBucket * sizeof(Entry);
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMallocAsync(&scratch, list_bytes + 256, Stream(stream)));
  uint32_t* count = static_cast<uint32_t*>(scratch);
  Entry* list = reinterpret_cast<Entry*>(static_cast<std::byte*>(scratch) + 256);
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(count, 0, sizeof *count, Stream(stream)));
  const unsigned blocks = static_cast<unsigned>((buckets * 32 + kThreads - 1) / kThreads);
  SplitKernel<<<blocks, kThreads, 0, Stream(stream)>>>(view_.index, list, count);
  view_.index.num_buckets = 2 * buckets;
  PlaceKernel<<<std::min(blocks, 1024u), kThreads, 0, Stream(stream)>>>(view_.index, list, count);
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return CudaStatus(cudaFreeAsync(scratch, Stream(stream)), "cudaFreeAsync");
}

}  // namespace dynemb
