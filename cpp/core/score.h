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
  kDecayed = 5,    // ids of training lookups, old ones count less: see DecayedTouch
};

inline constexpr uint64_t kMaxScore = ~uint64_t{0};

// Decayed frequency. An id of training lookup L weighs w(L) = 2^p (1 + f), where p + f
// is L over the half-life, p whole and f in [0, 1): 2^(L / half-life), with straight
// lines between its doublings, at most 6.2 % above it. A score is the sum of its ids'
// weights, so it never fades; those of others grow past it. What an id of lookup L
// counts at lookup N is w(L) / w(N), and the order of rows is the same at every N.
// G. Cormode, V. Shkapenyuk, D. Srivastava, B. Xu, "Forward decay", ICDE 2009; the
// spectrum between LFU and LRU: D. Lee et al., "LRFU", IEEE Trans. Computers 2001.
//
// As 64 bits that order like the numbers: p + 1 in the upper half, 32 binary places of
// the rest, cut off, in the lower. 0 is nothing. All ids of a batch weigh the same, so
// the order in which they are added does not matter.
inline constexpr uint64_t kLargestPeriod = 0xFFFFFFF0;

// half_life in [1, 2^32).
DYNEMB_HD uint64_t DecayedTouch(uint64_t lookup, uint64_t half_life) {
  const uint64_t period = lookup / half_life;
  if (period > kLargestPeriod) return (kLargestPeriod + 2) << 32;
  return (period + 1) << 32 | ((lookup % half_life) << 32) / half_life;
}

DYNEMB_HD uint64_t DecayedSum(uint64_t a, uint64_t b) {
  const uint64_t large = a < b ? b : a, small = a < b ? a : b;
  if (small == 0) return large;
  constexpr uint64_t kOne = uint64_t{1} << 32;
  const uint64_t exponent = large >> 32, behind = exponent - (small >> 32);
  uint64_t sum = kOne | (large & (kOne - 1));
  if (behind <= 32) sum += (kOne | (small & (kOne - 1))) >> behind;
  if (sum < 2 * kOne) return exponent << 32 | (sum & (kOne - 1));
  return exponent == kOne - 1 ? kMaxScore : (exponent + 1) << 32 | ((sum >> 1) & (kOne - 1));
}

// Score of a row after one id has touched it. `value` is the step, the time or the
// caller's score, the same meaning as `score`, or the weight of a decayed touch;
// frequency counts and needs none.
DYNEMB_HD uint64_t TouchedScore(ScoreKind kind, uint64_t score, uint64_t value) {
  if (kind == ScoreKind::kFrequency) return score == kMaxScore ? score : score + 1;
  if (kind == ScoreKind::kDecayed) return DecayedSum(score, value);
  return value > score ? value : score;
}

}  // namespace dynemb
