// Scores of bounded tables as ids touch them.
#pragma once

#include "core/score.h"
#include "cuda/new_rows.cuh"
#include "cuda/params.h"

namespace dynemb {

// An id has touched the row in this slot of a bounded table; slot < 0: no row. `first`: of
// its row in this call. value: see TouchedScore; of frequencies, so many ids.
__device__ inline void TouchOnDevice(const TableView& table, int64_t slot, bool first,
                                     uint64_t value) {
  if (slot < 0) return;
  unsigned long long* score = reinterpret_cast<unsigned long long*>(table.scores + slot);
  switch (table.score) {
    case ScoreKind::kStep:
    case ScoreKind::kTime:
      if (first) table.scores[slot] = value;  // they only grow
      break;
    case ScoreKind::kCustom:
      atomicMax(score, static_cast<unsigned long long>(value));
      break;
    case ScoreKind::kFrequency:
      if (value != 0 && atomicAdd(score, value) > kMaxScore - value) atomicMax(score, kMaxScore);
      break;
    case ScoreKind::kNone:
      break;
  }
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
