// What a call knows of the new keys of bounded tables.
#pragma once

#include <cooperative_groups.h>

#include <cub/block/block_scan.cuh>

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

// Lists the ids that bring new keys, in order. Of the others the row array says which id
// brings their key.
template <bool kTogether, class Tables>
__device__ uint32_t ListNewKeys(const Tables& tables, const LookupScratch& s,
                                const BoundedScratch& b, int64_t num_ids) {
  using Scan = cub::BlockScan<uint32_t, kThreads>;
  __shared__ typename Scan::TempStorage storage;
  __shared__ uint32_t base, total;
  const int64_t blocks = int64_t{gridDim.x} * kThreads;
  const int64_t chunk = (num_ids + blocks - 1) / blocks * kThreads;
  const int64_t begin = blockIdx.x * chunk, end = min(begin + chunk, num_ids);
  const auto brings = [&](int64_t id) {
    if (id >= end || !IsSlot(s.rows[id])) return false;
    return static_cast<int64_t>(s.elections[kSlot - s.rows[id]] & 0xFFFFFFFFu) == id;
  };
  uint32_t mine = 0, before = 0, sum = 0;
  for (int64_t id = begin + threadIdx.x; id < end; id += kThreads) mine += brings(id) ? 1u : 0u;
  Scan(storage).ExclusiveSum(mine, before, sum);
  if (threadIdx.x == 0) b.block_counts[blockIdx.x] = sum;
  SyncGrid<kTogether>();
  uint32_t ahead = 0, all = 0;
  for (uint32_t block = threadIdx.x; block < gridDim.x; block += kThreads) {
    const uint32_t count = __ldcg(b.block_counts + block);
    all += count;
    if (block < blockIdx.x) ahead += count;
  }
  Scan(storage).ExclusiveSum(ahead, before, sum);
  if (threadIdx.x == 0) base = sum;
  __syncthreads();
  Scan(storage).ExclusiveSum(all, before, sum);
  if (threadIdx.x == 0) total = sum;
  __syncthreads();
  uint32_t next = base;
  for (int64_t first = begin; first < end; first += kThreads) {
    const int64_t id = first + threadIdx.x;
    const bool is_new = brings(id);
    Scan(storage).ExclusiveSum(is_new ? 1u : 0u, before, sum);
    const int32_t table = id < end ? TableOfId(tables, id) : 0;
    if (is_new) {
      const uint32_t number = next + before;
      b.keys[number] = {static_cast<uint32_t>(id), table};
      b.outcomes[number] = kOpen;
      atomicMax(&s.counts[table].first_new, INT32_MAX - static_cast<int32_t>(number));
    } else if (id < end && IsSlot(s.rows[id])) {
      s.rows[id] = kSameKey - static_cast<int64_t>(s.elections[kSlot - s.rows[id]] & 0xFFFFFFFFu);
    }
    BlockTakeOfTable(is_new, table, TableOfId(tables, first), s.counts, &CallCounts::new_rows);
    next += sum;
    __syncthreads();
  }
  return total;
}

}  // namespace dynemb
