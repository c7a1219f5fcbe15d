// Gives back what erased keys have left: rows close up, the index merges its buckets, and the
// memory behind both returns to the device. Host calls.
#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "cuda/cuda_backend.h"
#include "cuda/displaced.cuh"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

// Rows from number `rows` on move into free ones before it, of which there are as many: a
// warp a bucket, a lane a slot. Which one goes where shows nowhere.
__global__ void __launch_bounds__(kThreads)
    CloseUpKernel(const __grid_constant__ TableView view, int64_t rows,
                  unsigned long long* next_free) {
  const uint64_t bucket = (uint64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (bucket >= view.index.num_buckets) return;
  const SlotRef at{BucketIndex{bucket}, Lane()};
  int64_t from = -1, to = -1;
  if (at.slot < kSlotsPerBucket && view.index.Sector(at.bucket).tags[at.slot] != 0) {
    Entry& entry = view.index.EntryAt(at);
    from = static_cast<int64_t>(entry.Row());
    while (from >= rows && (to < 0 || to >= rows)) to = view.free_rows[atomicAdd(next_free, 1ull)];
    if (to >= 0) {
      entry.row_and_spare = static_cast<uint64_t>(to);
      view.stamps[to] = view.stamps[from];
      if (view.touches != nullptr) view.touches[to] = view.touches[from];
    }
  }
  for (unsigned moving = __ballot_sync(kFullWarp, to >= 0); moving != 0; moving &= moving - 1) {
    const int lane = __ffs(static_cast<int>(moving)) - 1;
    const float* source = view.Row(__shfl_sync(kFullWarp, from, lane));
    float* target = view.Row(__shfl_sync(kFullWarp, to, lane));
    for (int64_t i = Lane(); i < view.stride_floats; i += 32) target[i] = source[i];
  }
}

// Buckets that agree in their low bits become one, in place: a warp each. The keys whose
// home it is stay there, those of the smallest hashes if they are too many; the others are
// displaced. kCounts: only says how many those are.
template <bool kCounts>
__global__ void __launch_bounds__(kThreads)
    MergeBucketsKernel(IndexView view, uint64_t* scores, uint64_t num_buckets, Displaced* displaced,
                       uint32_t* count) {
  const uint64_t bucket = (uint64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (bucket >= num_buckets) return;
  // One key a lane, of the first `held` lanes.
  Displaced mine{};
  uint64_t hash = 0;
  int held = 0;
  const auto displace = [&](const Displaced& one) {
    const uint32_t place = atomicAdd(count, 1u);
    if (!kCounts) displaced[place] = one;
  };
  for (uint64_t from = bucket; from < view.num_buckets; from += num_buckets) {
    const SlotRef at{BucketIndex{from}, Lane()};
    uint8_t tag = 0;
    Displaced its{};
    if (at.slot < kSlotsPerBucket) tag = view.Sector(at.bucket).tags[at.slot];
    if (tag != 0) {
      its.entry = LoadEntry(&view.EntryAt(at));
      if (scores != nullptr) {
        its.score = scores[from * kScoresPerBucket + static_cast<uint64_t>(at.slot)];
      }
    }
    const KeyHash its_hash = HashKey(its.entry.key);
    const bool stays = tag != 0 && its_hash.Home(num_buckets) == BucketIndex{bucket};
    if (tag != 0 && !stays) displace(its);
    for (unsigned left = __ballot_sync(kFullWarp, stays); left != 0; left &= left - 1) {
      const int lane = __ffs(static_cast<int>(left)) - 1;
      Displaced comes;
      comes.entry.key = __shfl_sync(kFullWarp, its.entry.key, lane);
      comes.entry.row_and_spare = __shfl_sync(kFullWarp, its.entry.row_and_spare, lane);
      comes.score = __shfl_sync(kFullWarp, its.score, lane);
      const uint64_t bits = __shfl_sync(kFullWarp, its_hash.bits, lane);
      int place = held;
      if (held < kSlotsPerBucket) {
        ++held;
      } else {
        // The largest hash makes way, be it that of the one that comes.
        uint64_t largest = Lane() < held ? hash : 0;
        for (int mask = 16; mask > 0; mask /= 2) {
          largest = max(largest, __shfl_xor_sync(kFullWarp, largest, mask));
        }
        place = bits > largest ? -1
                               : __ffs(static_cast<int>(
                                     __ballot_sync(kFullWarp, Lane() < held && hash == largest))) -
                                     1;
        if (place < 0 && Lane() == 0) displace(comes);
        if (place == Lane()) displace(mine);
      }
      if (place == Lane()) {
        mine = comes;
        hash = bits;
      }
    }
  }
  if (kCounts) return;
  uint8_t* bytes = view.Sector(BucketIndex{bucket}).tags;  // 31 tags and, last, the control byte
  const bool holds = Lane() < held;
  bytes[Lane()] = holds ? HashKey(mine.entry.key).Tag() : uint8_t{0};
  if (!holds) return;
  const SlotRef at{BucketIndex{bucket}, Lane()};
  *reinterpret_cast<ulonglong2*>(&view.EntryAt(at)) =
      make_ulonglong2(mine.entry.key, mine.entry.row_and_spare);
  if (scores != nullptr) {
    scores[bucket * kScoresPerBucket + static_cast<uint64_t>(Lane())] = mine.score;
  }
}

// Rows have closed up.
__global__ void EndCloseUpKernel(TableState* state) {
  state->high_water = state->size;
  state->free_count = 0;
}

// The group has changed, and rows may have moved.
__global__ void EndShrinkKernel(GroupState* group, uint32_t epoch) {
  group->last_erase_epoch = epoch;
  group->version = static_cast<int32_t>(static_cast<uint32_t>(group->version) + 1);
  group->last_was_lookup = 0;
}

unsigned BucketBlocks(uint64_t buckets) { return Blocks(static_cast<int64_t>(buckets) * 32); }

// Device memory for the time of a call.
class Temporary {
 public:
  Temporary() = default;
  ~Temporary() { cudaFree(data_); }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  // Its first bytes are zeros, as many as a counter may have.
  Status Allocate(size_t bytes) {
    const cudaError_t result = cudaMalloc(&data_, bytes);
    if (result == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      return MemoryError("shrink: the card has no ", bytes,
                         " bytes to move keys; set XLA_PYTHON_CLIENT_MEM_FRACTION lower. What has "
                         "been given back stays so: go on from dynemb_jax.resync(emb).");
    }
    DYNEMB_CUDA_RETURN_IF_ERROR(result);
    return CudaStatus(cudaMemset(data_, 0, sizeof(uint64_t)), "cudaMemset");
  }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

}  // namespace

Status CudaTable::MergeBuckets(uint64_t num_buckets) {
  const unsigned blocks = BucketBlocks(num_buckets);
  Temporary counter, scratch;
  DYNEMB_RETURN_IF_ERROR(counter.Allocate(sizeof(uint64_t)));
  uint32_t count = 0;
  MergeBucketsKernel<true><<<blocks, kThreads>>>(view_.index, view_.scores, num_buckets, nullptr,
                                                 static_cast<uint32_t*>(counter.data()));
  DYNEMB_CUDA_RETURN_IF_ERROR(
      cudaMemcpy(&count, counter.data(), sizeof count, cudaMemcpyDeviceToHost));
  DYNEMB_RETURN_IF_ERROR(scratch.Allocate(DisplacedList::Size(count)));
  const DisplacedList list(scratch.data());
  MergeBucketsKernel<false>
      <<<blocks, kThreads>>>(view_.index, view_.scores, num_buckets, list.keys, list.count);
  view_.index.num_buckets = num_buckets;
  LaunchPlaceAgain(view_.index, view_.scores, list, nullptr);
  erased_when_tidy_ = erased_;
  return CudaStatus(cudaDeviceSynchronize(), "merge");
}

Status CudaTable::Shrink(const TableState& now, TableState* state, TableView* view_on_device) {
  const int64_t rows = now.size;
  if (now.high_water > rows) {
    Temporary next_free;
    DYNEMB_RETURN_IF_ERROR(next_free.Allocate(sizeof(uint64_t)));
    CloseUpKernel<<<BucketBlocks(view_.index.num_buckets), kThreads>>>(
        view_, rows, static_cast<unsigned long long*>(next_free.data()));
    EndCloseUpKernel<<<1, 1>>>(state);
    DYNEMB_CUDA_RETURN_IF_ERROR(cudaDeviceSynchronize());
  }
  // As much as a new table of these rows would take.
  const Room wanted = PlanRoom(config_, Room{1, 0}, 0, rows).room;
  const Room room{std::min(room_.num_buckets, wanted.num_buckets),
                  std::min(room_.row_capacity, wanted.row_capacity)};
  if (room.num_buckets < room_.num_buckets) {
    DYNEMB_RETURN_IF_ERROR(MergeBuckets(room.num_buckets));
  }
  room_ = room;
  view_.row_limit = Capacity();
  const auto sized = [](int64_t count, size_t each) { return count * static_cast<Bytes>(each); };
  const int64_t buckets = static_cast<int64_t>(room.num_buckets);
  values_.Shrink(room.row_capacity * layout_.StrideBytes());
  stamps_.Shrink(sized(room.row_capacity, sizeof(uint64_t)));
  touches_.Shrink(sized(room.row_capacity, sizeof(uint64_t)));
  free_rows_.Shrink(sized(room.row_capacity, sizeof(int64_t)));
  sectors_.Shrink(sized(buckets, sizeof(TagSector)));
  entries_.Shrink(sized(buckets * kSlotsPerBucket, sizeof(Entry)));
  scores_.Shrink(sized(buckets * kScoresPerBucket, sizeof(uint64_t)));
  heads_.Shrink(sized(buckets, sizeof(uint32_t)));
  return CudaStatus(cudaMemcpy(view_on_device, &view_, sizeof view_, cudaMemcpyHostToDevice),
                    "cudaMemcpy");
}

Status CudaBackend::Shrink(int32_t from, std::vector<Bytes>* freed, int32_t* to) {
  std::lock_guard<std::mutex> lock(mutex_);
  DYNEMB_RETURN_IF_ERROR(CheckVersion(from));
  const TableState* states =
      reinterpret_cast<const TableState*>(state_copy_.data() + sizeof(GroupState));
  Status first;
  for (size_t t = 0; t < tables_.size(); ++t) {
    CudaTable& one = *tables_[t];
    const Bytes before = RoomBytes(one.config(), one.room());
    const Status shrunk = one.Shrink(states[t], states_ + t, views_ + t);
    if (!shrunk.ok() && first.ok()) first = shrunk;
    freed->push_back(before - RoomBytes(one.config(), one.room()));
  }
  // Rows have moved, even where memory was short.
  EndShrinkKernel<<<1, 1>>>(group_, epoch_);
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  DYNEMB_RETURN_IF_ERROR(ReadState());
  *to = reinterpret_cast<const GroupState*>(state_copy_.data())->version;
  return first;
}

}  // namespace dynemb
