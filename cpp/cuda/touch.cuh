// Scores of bounded tables as ids touch them.
#pragma once

#include "core/score.h"
#include "cuda/new_rows.cuh"
#include "cuda/params.h"

namespace dynemb {

// `ids` of one key have touched the row in this slot of a bounded table; slot < 0: no row.
// `first`: of its row in this call. value: see TouchedScore.
__device__ inline void TouchOnDevice(const TableView& table, int64_t slot, bool first, uint32_t ids,
                                     uint64_t value) {
  if (slot < 0 || ids == 0) return;
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
      if (atomicAdd(score, ids) > kMaxScore - ids) atomicMax(score, kMaxScore);
      break;
    case ScoreKind::kDecayed:
      for (unsigned long long seen = *score;;) {
        uint64_t sum = seen;
        for (uint32_t n = 0; n < ids; ++n) sum = DecayedSum(sum, value);
        const unsigned long long before = atomicCAS(score, seen, sum);
        if (before == seen) break;
        seen = before;
      }
      break;
    case ScoreKind::kNone:
      break;
  }
}

// Scores to which each id of a batch adds.
DYNEMB_HD bool AddsUp(ScoreKind score) {
  return score == ScoreKind::kFrequency || score == ScoreKind::kDecayed;
}

// Scores for which each id of a new key matters.
DYNEMB_HD bool IsScoredById(ScoreKind score) {
  return AddsUp(score) || score == ScoreKind::kCustom;
}

// What a touch by id i is worth.
__device__ inline uint64_t TouchValue(const TableView& table, const TableState& state,
                                      const FeatureParam& feature, int64_t i, int lookups,
                                      uint64_t time) {
  const uint64_t now = static_cast<uint64_t>(state.counters.lookups + lookups);
  switch (table.score) {
    case ScoreKind::kStep:
      return now;
    case ScoreKind::kTime:
      return time;
    case ScoreKind::kCustom:
      return feature.scores == nullptr ? 0 : feature.scores[i];
    case ScoreKind::kDecayed:
      return DecayedTouch(now, table.half_life);
    case ScoreKind::kFrequency:
    case ScoreKind::kNone:
      break;
  }
  return 0;
}

}  // namespace dynemb
