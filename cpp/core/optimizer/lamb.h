// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;
// u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + wd w;
// w -= lr r u with r = |w| / |u| over the row, 1 where either norm is 0
// Y. You et al., ICLR 2020, in the form of optax.lamb, each row a layer of its own. Lazy;
// t is the number of steps of the whole group, counting the current one.
//
// The norms are of what the step will be. A column's share follows from its gradient and
// its old state, so they are sums like any other rule's, and the columns compute u again.
#pragma once

#include <cmath>

#include "core/optimizer/adam.h"

namespace dynemb {

struct Lamb : AdamRule {
  static constexpr int kVectors = 2;
  static constexpr int kScalars = 0;
  static constexpr int kSums = 2;  // of w^2, of u^2
  struct RowTerms {
    float step_size;  // lr r
  };

  DYNEMB_HD Lamb(const OptimizerParameters& parameters, const StepOperands& operands)
      : AdamRule(parameters, operands.learning_rate),
        weight_decay(parameters.weight_decay),
        inv_correct1(1.0f / BiasCorrection(parameters.beta1, TimeOf(operands))),
        inv_root_correct2(1.0f / sqrtf(BiasCorrection(parameters.beta2, TimeOf(operands)))) {}

  DYNEMB_HD static double TimeOf(const StepOperands& operands) {
    return static_cast<double>(operands.step) + 1.0;
  }
  DYNEMB_HD float Step(float g, float w, float& m, float& v) const {
    m = beta1 * m + rest1 * g;
    v = beta2 * v + rest2 * (g * g);
    const float divisor = sqrtf(v) * inv_root_correct2 + epsilon;
    // Without eps and without a gradient there is nothing to divide by: nothing moves.
    const float step = m * inv_correct1 / (divisor == 0.0f ? INFINITY : divisor);
    // Without decay whatever w is: 0 times a row that is not finite is a NaN.
    return weight_decay == 0.0f ? step : step + weight_decay * w;
  }

  DYNEMB_HD void Sum(float g, float w, float m, float v, float* sums) const {
    const float u = Step(g, w, m, v);
    sums[0] += w * w;
    sums[1] += u * u;
  }
  DYNEMB_HD RowTerms Row(float*, const float* sums, int) const {
    const bool is_zero = sums[0] == 0.0f || sums[1] == 0.0f;
    return {rate * (is_zero ? 1.0f : sqrtf(sums[0]) / sqrtf(sums[1]))};
  }
  DYNEMB_HD void Column(RowTerms terms, float g, float& w, float& m, float& v) const {
    w -= terms.step_size * Step(g, w, m, v);
  }

  float weight_decay, inv_correct1, inv_root_correct2;
};
static_assert(UpdateRule<Lamb>);

}  // namespace dynemb
