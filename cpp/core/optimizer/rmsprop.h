// v = d v + (1 - d) g^2;  w -= lr g / sqrt(v + eps), nothing while that divides by 0.
// G. Hinton, lecture 6e of "Neural networks for machine learning", 2012; not centred,
// eps inside the root as in optax.rmsprop. Lazy: v of a row decays only in steps that
// contain the row.
#pragma once

#include <cmath>

#include "core/optimizer/optimizer.h"

namespace dynemb {

struct Rmsprop {
  static constexpr int kVectors = 1;
  static constexpr int kScalars = 0;
  static constexpr int kSums = 0;
  struct RowTerms {};

  // 1 - d is rounded once, from double.
  DYNEMB_HD Rmsprop(const OptimizerParameters& parameters, const StepOperands& operands)
      : learning_rate(operands.learning_rate),
        decay(static_cast<float>(parameters.beta2)),
        rest(static_cast<float>(1.0 - parameters.beta2)),
        epsilon(parameters.epsilon) {}

  DYNEMB_HD RowTerms Row(float*, const float*, int) const { return {}; }
  DYNEMB_HD void Column(RowTerms, float g, float& w, float& v, float&) const {
    v = decay * v + rest * (g * g);
    const float divisor = sqrtf(v + epsilon);
    // Dividing by infinity moves nothing; a NaN is no 0, and shows.
    w -= learning_rate * g / (divisor == 0.0f ? INFINITY : divisor);
  }

  float learning_rate, decay, rest, epsilon;
};
static_assert(UpdateRule<Rmsprop>);

}  // namespace dynemb
