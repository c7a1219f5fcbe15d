// Keys whose bucket changes when an index grows or shrinks, and that find no place there.
#pragma once

#include <algorithm>
#include <cstddef>

#include "cuda/device_ops.cuh"

namespace dynemb {

// A key that is taken out of its bucket.
struct Displaced {
  Entry entry;
  uint64_t score;
};

// Where so many lie decides what keys may have to make way for; more of them only once
// in a long while find a bucket full, and go in any order.
inline constexpr uint32_t kOrderedKeys = 2048;

__device__ inline void PlaceAgain(const IndexView& view, uint64_t* scores, const Displaced& one) {
  const SlotRef at = PlaceAbsentOnDevice(view, one.entry);
  if (scores == nullptr || at.slot < 0) return;
  scores[static_cast<int64_t>(at.bucket) * kScoresPerBucket + at.slot] = one.score;
}

static __global__ void __launch_bounds__(kThreads)
    PlaceKernel(IndexView view, uint64_t* scores, const Displaced* overflowed,
                const uint32_t* overflowed_count) {
  const uint32_t count = *overflowed_count;
  if (scores != nullptr && count <= kOrderedKeys) return;
  for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < count; i += gridDim.x * kThreads) {
    PlaceAgain(view, scores, overflowed[i]);
  }
}

// A few keys of a bounded table in the order of their hashes, as the host does: by one
// block, whose first thread places them.
static __global__ void __launch_bounds__(kThreads)
    PlaceInOrderKernel(IndexView view, uint64_t* scores, const Displaced* overflowed,
                       const uint32_t* overflowed_count) {
  __shared__ uint32_t order[kOrderedKeys];
  const uint32_t count = *overflowed_count;
  if (count > kOrderedKeys) return;
  for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
    const uint64_t mine = HashKey(overflowed[i].entry.key).bits;
    uint32_t rank = 0;
    for (uint32_t j = 0; j < count; ++j) rank += HashKey(overflowed[j].entry.key).bits < mine;
    order[rank] = i;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (uint32_t i = 0; i < count; ++i) PlaceAgain(view, scores, overflowed[order[i]]);
}

// What they lie in: their number, then they themselves.
struct DisplacedList {
  static constexpr size_t kHeader = 256;

  uint32_t* count;
  Displaced* keys;

  static size_t Size(uint64_t most) { return kHeader + most * sizeof(Displaced); }
  explicit DisplacedList(void* scratch)
      : count(static_cast<uint32_t*>(scratch)),
        keys(reinterpret_cast<Displaced*>(static_cast<std::byte*>(scratch) + kHeader)) {}
};

// Of a table whose buckets have their new number by now.
inline void LaunchPlaceAgain(const IndexView& view, uint64_t* scores, const DisplacedList& list,
                             cudaStream_t stream) {
  const unsigned grid = std::min(Blocks(static_cast<int64_t>(view.num_buckets) * 32), 1024u);
  PlaceKernel<<<grid, kThreads, 0, stream>>>(view, scores, list.keys, list.count);
  if (scores == nullptr) return;
  PlaceInOrderKernel<<<1, kThreads, 0, stream>>>(view, scores, list.keys, list.count);
}

}  // namespace dynemb
