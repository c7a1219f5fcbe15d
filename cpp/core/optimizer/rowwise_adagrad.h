// a += mean of g^2 over the row;  w -= lr g / (sqrt(a) + eps), nothing while the
// divisor is 0.
// Adagrad with one accumulator a row: D. Mudigere et al., ISCA 2022 ("row-wise
// sparse AdaGrad"), after J. Duchi, E. Hazan, Y. Singer, JMLR 12, 2011.
#pragma once

#include <cmath>

#include "core/optimizer/optimizer.h"

namespace dynemb {

struct RowwiseAdagrad {
  static constexpr int kVectors = 0;
  static constexpr int kScalars = 1;  // a, a float
  static constexpr int kSums = 1;     // of g^2
  struct RowTerms {
    float divisor;
  };

  DYNEMB_HD RowwiseAdagrad(const OptimizerParameters& parameters, const StepOperands& operands)
      : learning_rate(operands.learning_rate), epsilon(parameters.epsilon) {}

  DYNEMB_HD void Sum(float g, float, float, float, float* sums) const { sums[0] += g * g; }
  DYNEMB_HD RowTerms Row(float* scalars, const float* sums, int dim) const {
    scalars[0] += sums[0] / static_cast<float>(dim);
    float divisor = sqrtf(scalars[0]) + epsilon;
    // Dividing by infinity moves nothing. A NaN gradient made the divisor a NaN,
    // which is no 0 and shows.
    return {divisor == 0.0f ? INFINITY : divisor};
  }
  DYNEMB_HD void Column(RowTerms terms, float g, float& w, float&, float&) const {
    // No reciprocal once a row: that of a very small divisor is infinite, and 0 of it a NaN.
    w -= learning_rate * g / terms.divisor;
  }

  float learning_rate, epsilon;
};
static_assert(UpdateRule<RowwiseAdagrad>);

}  // namespace dynemb
