// Pooling of a bag of rows v_i with weights w_i (1 where none are given):
//   sum    s = sum w_i v_i
//   mean   s / sum w_i              0 where the weights sum to 0
//   sqrtn  s / sqrt(sum w_i^2)      0 where all weights are 0
// so d pooled / d v_i = w_i * BagScale in all three cases.
#pragma once

#include <cmath>

#include "core/annotations.h"
#include "core/types.h"

namespace dynemb {

struct BagSums {
  float weight = 0.0f;
  float squared_weight = 0.0f;

  DYNEMB_HD void Add(float w) {
    weight += w;
    squared_weight += w * w;
  }
};

DYNEMB_HD float BagScale(Combiner combiner, const BagSums& sums) {
  switch (combiner) {
    case Combiner::kMean:
      return sums.weight == 0.0f ? 0.0f : 1.0f / sums.weight;
    case Combiner::kSqrtN:
      return sums.squared_weight == 0.0f ? 0.0f : 1.0f / sqrtf(sums.squared_weight);
    case Combiner::kNone:
    case Combiner::kSum:
      break;
  }
  return 1.0f;
}

}  // namespace dynemb
