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

// Lists the ids that bring new keys, in order. Of the others the row array says which id
// brings their key. Returns how many new keys there are.
template <bool kTogether, class Tables>
__device__ uint32_t ListNewKeys(const Tables& tables, const LookupScratch& s,
                                const BoundedScratch& b, int64_t num_ids) {
  __shared__ uint32_t ahead_of_block, total;
  constexpr int kWarps = kThreads / 32;
  const uint32_t warps = gridDim.x * kWarps, warp = blockIdx.x * kWarps + threadIdx.x / 32;
  const int64_t chunk = (num_ids + int64_t{warps} * 32 - 1) / (int64_t{warps} * 32) * 32;
  const int64_t begin = warp * chunk, end = min(begin + chunk, num_ids);
  // The id that brings the key of `id`; -1: the key is there, or of a table without bounds.
  const auto bringer = [&](int64_t id) -> int64_t {
    const int64_t code = id < end ? s.rows[id] : kRowPadded;
    return IsSlot(code) ? static_cast<int64_t>(s.elections[kSlot - code] & 0xFFFFFFFFu) : -1;
  };
  uint32_t mine = 0;
  for (int64_t first = begin; first < end; first += 32) {
    const int64_t id = first + Lane();
    mine += static_cast<uint32_t>(__popc(__ballot_sync(kFullWarp, bringer(id) == id)));
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
  for (int64_t first = begin; first < end; first += 32) {
    const int64_t id = first + Lane(), by = bringer(id);
    const bool is_new = by == id;
    const unsigned mask = __ballot_sync(kFullWarp, is_new);
    if (by >= 0 && !is_new) s.rows[id] = kSameKey - by;
    if (mask == 0) continue;
    const int32_t table = is_new ? TableOfId(tables, id) : 0;
    if (is_new) {
      const uint32_t number = next + static_cast<uint32_t>(__popc(mask & ((1u << Lane()) - 1)));
      b.keys[number] = {static_cast<uint32_t>(id), table};
      b.outcomes[number] = kOpen;
      // Numbers ascend: the first lane of a table has its least.
      const unsigned peers = __match_any_sync(mask, table);
      if (__ffs(static_cast<int>(peers)) - 1 == Lane()) {
        atomicAdd(&s.counts[table].new_rows, __popc(peers));
        atomicMax(&s.counts[table].first_new, INT32_MAX - static_cast<int32_t>(number));
      }
    }
    next += static_cast<uint32_t>(__popc(mask));
  }
  return total;
}

}  // namespace dynemb
