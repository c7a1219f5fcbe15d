// What a call knows of the new keys of bounded tables.
#pragma once

#include <cooperative_groups.h>

#include "cuda/bounded_scratch.h"
#include "cuda/call_state.cuh"
#include "cuda/params.h"

namespace dynemb {

// All blocks of a launch, or its only one.
template <bool kTogether>
__device__ void SyncGrid() {
  if constexpr (kTogether) {
    cooperative_groups::this_grid().sync();
  } else {
    __syncthreads();
  }
}

template <class Tables>
__device__ int32_t TableOfId(const Tables& tables, int64_t id) {
  int low = 0, high = tables.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (tables.first_id[middle] <= id) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Counts new keys by table for a warp, whose keys are mostly of one: tens of thousands of
// additions to one address would queue.
class NewKeyCounter {
 public:
  __device__ explicit NewKeyCounter(CallCounts* counts) : counts_(counts) {}
  // Keys of ascending numbers from `first` on, by lane; all lanes call it.
  __device__ void Add(bool is_new, int32_t table, uint32_t first) {
    const unsigned lanes = __ballot_sync(kFullWarp, is_new);
    for (unsigned left = lanes; left != 0;) {
      const int32_t its = __shfl_sync(kFullWarp, table, LowestBit(left));
      const unsigned those = __ballot_sync(kFullWarp, is_new && table == its);
      if (its != table_) {
        Book();
        table_ = its;
        first_ = first + static_cast<uint32_t>(__popc(lanes & ~left));
      }
      count_ += __popc(those);
      left &= ~those;
    }
  }
  __device__ void Book() {
    if (count_ != 0 && Lane() == 0) {
      atomicAdd(&counts_[table_].new_rows, count_);
      atomicMax(&counts_[table_].first_new, INT32_MAX - static_cast<int32_t>(first_));
    }
    count_ = 0;
  }

 private:
  CallCounts* counts_;
  int32_t table_ = -1, count_ = 0;
  uint32_t first_ = 0;
};

// Lists the ids that bring new keys, in order, and calls found(key, number) for each. Of
// the others the row array says which id brings their key. Returns how many new keys
// there are.
template <bool kTogether, class Tables, class Found>
__device__ uint32_t ListNewKeys(const Tables& tables, const LookupScratch& s,
                                const BoundedScratch& b, int64_t num_ids, const Found& found) {
  __shared__ uint32_t ahead_of_block, total;
  constexpr int kWarps = kThreads / 32;
  const uint32_t warps = gridDim.x * kWarps, warp = blockIdx.x * kWarps + threadIdx.x / 32;
  const int64_t chunk = (num_ids + int64_t{warps} * 32 - 1) / (int64_t{warps} * 32) * 32;
  const int64_t begin = warp * chunk, end = min(begin + chunk, num_ids);
  uint32_t mine = 0;
  for (int64_t first = begin; first < end; first += 32) {
    const int64_t id = first + Lane(), code = id < end ? s.rows[id] : kRowPadded;
    bool brings = false;
    if (IsSlot(code)) {
      const int64_t by = static_cast<int64_t>(s.elections[kSlot - code] & 0xFFFFFFFFu);
      brings = by == id;
      if (!brings) s.rows[id] = kSameKey - by;
    }
    mine += static_cast<uint32_t>(__popc(__ballot_sync(kFullWarp, brings)));
  }
  if (Lane() == 0) b.warp_counts[warp] = mine;
  if (threadIdx.x == 0) ahead_of_block = total = 0;
  SyncGrid<kTogether>();
  uint32_t ahead = 0, all = 0;
  for (uint32_t w = threadIdx.x; w < warps; w += kThreads) {
    const uint32_t count = __ldcg(b.warp_counts + w);
    all += count;
    if (w < blockIdx.x * kWarps) ahead += count;
  }
  ahead = WarpSum(ahead);
  all = WarpSum(all);
  if (Lane() == 0) {
    atomicAdd(&ahead_of_block, ahead);
    atomicAdd(&total, all);
  }
  __syncthreads();
  uint32_t next = ahead_of_block;
  for (uint32_t w = blockIdx.x * kWarps; w < warp; ++w) next += __ldcg(b.warp_counts + w);
  NewKeyCounter counter(s.counts);
  for (int64_t first = begin; first < end; first += 32) {
    const int64_t id = first + Lane();
    const bool is_new = id < end && IsSlot(s.rows[id]);
    const unsigned mask = __ballot_sync(kFullWarp, is_new);
    if (mask == 0) continue;
    const int32_t table = is_new ? TableOfId(tables, id) : 0;
    if (is_new) {
      const uint32_t number = next + static_cast<uint32_t>(__popc(mask & ((1u << Lane()) - 1)));
      const OpenKey key{s.new_keys[id], static_cast<uint32_t>(id), table};
      b.keys[number] = key;
      b.outcomes[number] = kOpen;
      found(key, number);
    }
    counter.Add(is_new, table, next);
    next += static_cast<uint32_t>(__popc(mask));
  }
  counter.Book();
  return total;
}

}  // namespace dynemb
