#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/cuda_table.h"
#include "cuda/device_ops.cuh"
#include "cuda/displaced.cuh"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

// Doubles in place, one warp a bucket, one lane a slot. Keys of the home bucket
// stay or go to the same slot of bucket + N; overflowed keys are taken out.
__global__ void __launch_bounds__(kThreads)
    SplitKernel(IndexView view, uint64_t* scores, Displaced* overflowed,
                uint32_t* overflowed_count) {
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
  uint64_t score = 0;
  if (scores != nullptr) {
    score = scores[bucket * kScoresPerBucket + static_cast<uint64_t>(slot)];
    if (goes) {
      scores[(bucket + view.num_buckets) * kScoresPerBucket + static_cast<uint64_t>(slot)] = score;
    }
  }
  if (leaves) overflowed[atomicAdd(overflowed_count, 1u)] = {entry, score};
}

// Overflow marks outlive the keys they were set for. Both kernels together leave those
// that a present key still needs.
__global__ void __launch_bounds__(kThreads) ClearMarksKernel(IndexView view) {
  const uint64_t bucket = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (bucket < view.num_buckets) view.sectors[bucket].control &= uint8_t{0xFF ^ kOverflowMark};
}

// One warp a bucket, one lane a slot.
__global__ void __launch_bounds__(kThreads) MarkKernel(IndexView view) {
  const uint64_t bucket = (uint64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (bucket >= view.num_buckets || Lane() >= kSlotsPerBucket) return;
  if (view.sectors[bucket].tags[Lane()] == 0) return;
  const SlotRef at{BucketIndex{bucket}, Lane()};
  const KeyHash hash = HashKey(view.EntryAt(at).key);
  for (ProbePath path(hash, view.num_buckets); path.bucket() != at.bucket; path.Advance()) {
    atomicOr(reinterpret_cast<unsigned*>(&view.Sector(path.bucket())) + 7,
             unsigned{kOverflowMark} << 24);
  }
}

// Of kernels with a warp a bucket.
unsigned BucketBlocks(uint64_t buckets) { return Blocks(static_cast<int64_t>(buckets) * 32); }

cudaStream_t Stream(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

int64_t CudaTable::Capacity() const {
  return std::min(RowLimit(room_.num_buckets, config_.max_load), room_.row_capacity);
}

Status CudaTable::Init(const float* first_state) {
  view_.first_state = first_state;
  DYNEMB_RETURN_IF_ERROR(sketch_.Commit(AdmissionBytes()));
  if (AdmissionBytes() > 0) {
    DYNEMB_CUDA_RETURN_IF_ERROR(
        cudaMemset(sketch_.data(), 0, static_cast<size_t>(AdmissionBytes())));
  }
  const Bytes sweeps = config_.recorded_evictions * static_cast<Bytes>(sizeof(int64_t));
  if (!expires() || sweeps == 0) return Status();
  DYNEMB_RETURN_IF_ERROR(sweeps_.Commit(sweeps));
  return CudaStatus(cudaMemset(sweeps_.data(), 0, static_cast<size_t>(sweeps)), "cudaMemset");
}

Status CudaTable::Grow(void* stream, const Room& room, TableView* view_on_device) {
  DYNEMB_RETURN_IF_ERROR(values_.Commit(room.row_capacity * layout_.StrideBytes()));
  DYNEMB_RETURN_IF_ERROR(stamps_.Commit(room.row_capacity * static_cast<Bytes>(sizeof(uint64_t))));
  if (config_.StoresTouches()) {
    DYNEMB_RETURN_IF_ERROR(
        touches_.Commit(room.row_capacity * static_cast<Bytes>(sizeof(uint64_t))));
  }
  DYNEMB_RETURN_IF_ERROR(
      free_rows_.Commit(room.row_capacity * static_cast<Bytes>(sizeof(int64_t))));
  DYNEMB_RETURN_IF_ERROR(sectors_.Commit(static_cast<Bytes>(room.num_buckets) *
                                         static_cast<Bytes>(sizeof(TagSector))));
  DYNEMB_RETURN_IF_ERROR(entries_.Commit(static_cast<Bytes>(room.num_buckets) * kSlotsPerBucket *
                                         static_cast<Bytes>(sizeof(Entry))));
  if (is_bounded()) {
    const Bytes scores = static_cast<Bytes>(room.num_buckets) * kScoresPerBucket *
                         static_cast<Bytes>(sizeof(uint64_t));
    DYNEMB_RETURN_IF_ERROR(scores_.Commit(scores));
    DYNEMB_RETURN_IF_ERROR(heads_.Commit(static_cast<Bytes>(room.num_buckets * sizeof(uint32_t))));
    DYNEMB_RETURN_IF_ERROR(
        recorded_.Commit(config_.recorded_evictions * static_cast<Bytes>(sizeof(EvictedKey))));
  }
  // The last thing that may be short. What is committed without being used does no harm.
  void* scratch = nullptr;
  const uint64_t buckets = view_.index.num_buckets;
  if (buckets != 0 && room.num_buckets > buckets) {
    DYNEMB_CUDA_RETURN_IF_ERROR(
        cudaMallocAsync(&scratch, SplitBytes(room.num_buckets / 2), Stream(stream)));
  }

  if (room.row_capacity > room_.row_capacity) {
    DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(
        stamps_.data() + room_.row_capacity * static_cast<Bytes>(sizeof(uint64_t)), 0,
        static_cast<size_t>(room.row_capacity - room_.row_capacity) * sizeof(uint64_t),
        Stream(stream)));
  }
  if (is_bounded() && room.num_buckets > buckets) {
    DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(heads_.data() + buckets * sizeof(uint32_t), 0,
                                                (room.num_buckets - buckets) * sizeof(uint32_t),
                                                Stream(stream)));
  }
  view_.heads = reinterpret_cast<uint32_t*>(heads_.data());
  view_.scores = is_bounded() ? reinterpret_cast<uint64_t*>(scores_.data()) : nullptr;
  view_.score = config_.score;
  view_.half_life = static_cast<uint64_t>(config_.half_life);
  view_.evicts = config_.on_full == OnFull::kEvict;
  view_.recorded = reinterpret_cast<EvictedKey*>(recorded_.data());
  view_.record_limit = config_.recorded_evictions;
  view_.ttl_clock = config_.ttl_clock;
  view_.ttl = static_cast<uint64_t>(config_.ttl);
  view_.touches = reinterpret_cast<uint64_t*>(touches_.data());
  view_.sweeps = reinterpret_cast<int64_t*>(sweeps_.data());
  view_.admission = config_.admission;
  view_.sketch = {reinterpret_cast<uint8_t*>(sketch_.data()),
                  static_cast<uint64_t>(AdmissionBytes()) / kCountersPerBlock};
  view_.index.sectors = reinterpret_cast<TagSector*>(sectors_.data());
  view_.index.entries = reinterpret_cast<Entry*>(entries_.data());
  if (buckets == 0) {
    view_.index.num_buckets = room.num_buckets;
    DYNEMB_CUDA_RETURN_IF_ERROR(
        cudaMemsetAsync(sectors_.data(), 0, room.num_buckets * sizeof(TagSector), Stream(stream)));
  }
  while (view_.index.num_buckets < room.num_buckets) {
    DYNEMB_RETURN_IF_ERROR(Split(stream, scratch));
    ++growths_;
  }
  if (scratch != nullptr) DYNEMB_CUDA_RETURN_IF_ERROR(cudaFreeAsync(scratch, Stream(stream)));
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
  view_.row_limit = Capacity();
  // From pageable memory: staged at once, so view_ may change afterwards.
  return CudaStatus(
      cudaMemcpyAsync(view_on_device, &view_, sizeof view_, cudaMemcpyHostToDevice, Stream(stream)),
      "cudaMemcpyAsync");
}

size_t CudaTable::SplitBytes(uint64_t buckets) {
  // All keys of a bucket may have overflowed there.
  return DisplacedList::Size(buckets * kSlotsPerBucket);
}

Status CudaTable::Split(void* stream, void* scratch) {
  const uint64_t buckets = view_.index.num_buckets;
  const DisplacedList list(scratch);
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(list.count, 0, sizeof *list.count, Stream(stream)));
  SplitKernel<<<BucketBlocks(buckets), kThreads, 0, Stream(stream)>>>(view_.index, view_.scores,
                                                                      list.keys, list.count);
  view_.index.num_buckets = 2 * buckets;
  LaunchPlaceAgain(view_.index, view_.scores, list, Stream(stream));
  erased_when_tidy_ = erased_;
  return CudaStatus(cudaGetLastError(), "split");
}

Status CudaTable::TidyIfWorn(void* stream) {
  const int64_t slots = static_cast<int64_t>(view_.index.num_buckets) * kSlotsPerBucket;
  if (erased_ - erased_when_tidy_ <= slots / 8) return Status();
  erased_when_tidy_ = erased_;
  const unsigned blocks = BucketBlocks(view_.index.num_buckets);
  ClearMarksKernel<<<(blocks + 31) / 32, kThreads, 0, Stream(stream)>>>(view_.index);
  MarkKernel<<<blocks, kThreads, 0, Stream(stream)>>>(view_.index);
  return CudaStatus(cudaGetLastError(), "tidy");
}

}  // namespace dynemb
