// What a row is worth to a bounded table: 64 bits beside the row, larger is
// dearer. A touch never lowers a score, whatever order the batches come in.
#pragma once

#include <cstdint>

#include "core/annotations.h"

namespace dynemb {

// Mirrored by dynemb_jax.eviction.
enum class ScoreKind : int32_t {
  kNone = 0,       // the table forgets nothing, and no score is stored
  kStep = 1,       // the table's training lookups so far, the current one included
  kTime = 2,       // nanoseconds since 1970
  kFrequency = 3,  // ids of training lookups
  kCustom = 4,     // what the caller says
};

inline constexpr uint64_t kMaxScore = ~uint64_t{0};

// Score of a row after one id has touched it. `value` is the step, the time or the
// caller's score, the same meaning as `score`; frequency counts and needs none.
DYNEMB_HD uint64_t TouchedScore(ScoreKind kind, uint64_t score, uint64_t value) {
  if (kind == ScoreKind::kFrequency) return score == kMaxScore ? score : score + 1;
  return value > score ? value : score;
}

}  // namespace dynemb
