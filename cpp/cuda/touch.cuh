// Scores of bounded tables as ids touch them.
#pragma once

#include "core/score.h"
#include "cuda/new_rows.cuh"
#include "cuda/params.h"

namespace dynemb {

// An id has touched the row in this slot of a bounded table. `first`: of its row in this
// call. All lanes of a warp call it, of one table, those with slot < 0 for nothing.
__device__ inline void TouchOnDevice(const TableView& table, int64_t slot, bool first,
                                     uint64_t value) {
  if (table.score == ScoreKind::kStep || table.score == ScoreKind::kTime) {
    // Steps and times only grow.
    if (slot >= 0 && first) table.scores[slot] = value;
    return;
  }
  unsigned long long* score =
      reinterpret_cast<unsigned long long*>(table.scores + (slot >= 0 ? slot : 0));
  if (table.score == ScoreKind::kCustom) {
    if (slot >= 0) atomicMax(score, static_cast<unsigned long long>(value));
    return;
  }
  const unsigned peers = __match_any_sync(kFullWarp, slot);
  if (slot < 0 || RankAmong(peers) != 0) return;
  const unsigned long long count = static_cast<unsigned long long>(__popc(peers));
  if (atomicAdd(score, count) > kMaxScore - count) atomicMax(score, kMaxScore);
}

// What a touch by id i is worth.
__device__ inline uint64_t TouchValue(const TableView& table, const TableState& state,
                                      const FeatureParam& feature, int64_t i, int lookups,
                                      uint64_t time) {
  switch (table.score) {
    case ScoreKind::kStep:
      return static_cast<uint64_t>(state.counters.lookups + lookups);
    case ScoreKind::kTime:
      return time;
    case ScoreKind::kCustom:
      return feature.scores == nullptr ? 0 : feature.scores[i];
    case ScoreKind::kFrequency:
    case ScoreKind::kNone:
      break;
  }
  return 0;
}

}  // namespace dynemb
