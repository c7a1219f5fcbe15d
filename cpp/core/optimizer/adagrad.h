// a += g^2;  w -= lr g / sqrt(a + eps), nothing while a = 0.
// J. Duchi, E. Hazan, Y. Singer, JMLR 12, 2011; eps inside the root as in
// optax.adagrad, so that a dense optax run is a drop-in reference.
#pragma once

#include <cmath>

#include "core/optimizer/optimizer.h"

namespace dynemb {

struct Adagrad {
  static constexpr int kVectors = 1;
  static constexpr int kScalars = 0;
  static constexpr int kSums = 0;
  struct RowTerms {};

  DYNEMB_HD Adagrad(const OptimizerParameters& parameters, const StepOperands& operands)
      : learning_rate(operands.learning_rate), epsilon(parameters.epsilon) {}

  DYNEMB_HD RowTerms Row(float*, const float*, int) const { return {}; }
  DYNEMB_HD void Column(RowTerms, float g, float& w, float& a, float&) const {
    a += g * g;
    float scale = 1.0f / sqrtf(a + epsilon);
    // "a > 0 ? ... : 0" would swallow a NaN gradient, which has to show.
    w -= a == 0.0f ? 0.0f : learning_rate * g * scale;
  }

  float learning_rate, epsilon;
};
static_assert(UpdateRule<Adagrad>);

}  // namespace dynemb
