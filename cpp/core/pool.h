// Pooling of a bag of rows v_i with weights w_i (1 where none are given):
//   sum    s = sum w_i v_i
//   mean   s / sum w_i              0 where the weights cancel
//   sqrtn  s / sqrt(sum w_i^2)      0 where all weights are 0
// so d pooled / d v_i = w_i * BagScale in all three cases. Weights cancel when
// |sum w_i| <= 2^-20 sum |w_i|: what is left then is the rounding of the weights
// themselves, and dividing by it would blow it up.
#pragma once

#include <cmath>

#include "core/annotations.h"
#include "core/types.h"

namespace dynemb {

inline constexpr double kCancelled = 0x1p-20;

struct BagSums {
  double weight = 0.0;
  double absolute_weight = 0.0;
  double squared_weight = 0.0;

  DYNEMB_HD void Add(float w) {
    const double wide = static_cast<double>(w);
    weight += wide;
    absolute_weight += wide < 0.0 ? -wide : wide;
    squared_weight += wide * wide;
  }
};

DYNEMB_HD float BagScale(Combiner combiner, const BagSums& sums) {
  switch (combiner) {
    case Combiner::kMean: {
      const double size = sums.weight < 0.0 ? -sums.weight : sums.weight;
      // Not "size > ...": NaN weights have to show.
      if (size <= kCancelled * sums.absolute_weight) return 0.0f;
      return static_cast<float>(1.0 / sums.weight);
    }
    case Combiner::kSqrtN:
      if (sums.squared_weight == 0.0) return 0.0f;
      return static_cast<float>(1.0 / sqrt(sums.squared_weight));
    case Combiner::kNone:
    case Combiner::kSum:
      break;
  }
  return 1.0f;
}

}  // namespace dynemb
