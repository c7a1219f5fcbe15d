// What kernels of one call ask of its state and scratch.
#pragma once

#include "cuda/device_ops.cuh"

namespace dynemb {

// Positions for the threads of a block that want one, from a global counter: one
// atomic a block. Every thread of the block calls it; -1 for those that do not
// want one.
__device__ inline int64_t BlockAllocate(bool wanted, uint32_t* counter) {
  __shared__ uint32_t taken, base;
  __syncthreads();
  if (threadIdx.x == 0) taken = 0;
  __syncthreads();
  const unsigned mask = __ballot_sync(kFullWarp, wanted);
  uint32_t offset = 0;
  if (mask != 0) {
    const int leader = __ffs(static_cast<int>(mask)) - 1;
    if (Lane() == leader) offset = atomicAdd(&taken, static_cast<uint32_t>(__popc(mask)));
    offset = __shfl_sync(kFullWarp, offset, leader);
    offset += static_cast<uint32_t>(__popc(mask & ((1u << Lane()) - 1)));
  }
  __syncthreads();
  if (threadIdx.x == 0 && taken != 0) base = atomicAdd(counter, taken);
  __syncthreads();
  return wanted ? static_cast<int64_t>(base + offset) : -1;
}

// Whether the call is to be done, now that its checksum is known.
__device__ inline bool Runs(const GroupState& group) {
  if (group.run == 0 || group.bad_call != 0) return false;
  return group.may_replay == 0 || group.ids_checksum == group.last_ids_checksum;
}

// Row, or code, of an id after the insertions.
__device__ inline int64_t ResolvedRow(const LookupScratch& scratch, int64_t id) {
  const int64_t row = scratch.rows[id];
  if (row > kRowWaits) return row;
  const Miss& miss = scratch.misses[kRowWaits - row];
  return scratch.rows[scratch.misses[miss.winner].id];
}

}  // namespace dynemb
