// What kernels of one call ask of its state and scratch.
#pragma once

#include "cuda/device_ops.cuh"

namespace dynemb {

// Whether the call is to be done, now that its checksum is known.
__device__ inline bool Runs(const GroupState& group) {
  // All loads at once: every kernel starts with them.
  const int32_t run = group.run, bad = group.bad_call, may_replay = group.may_replay;
  const uint64_t checksum = group.ids_checksum, last = group.last_ids_checksum;
  return run != 0 && bad == 0 && (may_replay == 0 || checksum == last);
}

// Row, or code, after the insertions of an id that had `row` before them.
__device__ inline int64_t ResolvedRow(const LookupScratch& scratch, int64_t row) {
  if (row > kRowWaits) return row;
  return scratch.misses[scratch.misses[kRowWaits - row].winner].row;
}

}  // namespace dynemb
