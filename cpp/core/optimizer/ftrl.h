// FTRL-Proximal: H. B. McMahan et al., "Ad click prediction: a view from the trenches",
// KDD 2013, Algorithm 1. With q = (beta + sqrt(n + a)) / lr, before and after the step,
// it reads, for each column,
//   n += g^2;  Z += g - (q_after - q_before) w;
//   w = 0 where |Z| <= l1, else -(Z - sign(Z) l1) / (q_after + l2)
// (a, the initial accumulator, is 0 there, and beta keeps q from 0).
//
// The state is z = Z + q w, so that it begins with 0 for every row, as the paper's Z does
// for a w of 0: the part (beta + sqrt(a)) / lr of the proximal term that is there from
// the start is centred at the row's first value, which so is kept until l1, l2 and
// gradients move it. And a schedule of lr rescales steps, where it would rescale a w
// that is computed from Z. With z, the step is
//   pulled = z + g - q_after w
//   |pulled| <= l1:  z = pulled, w = 0
//   else, s = sign(pulled):  w -= (z + g + l2 w - s l1) / (q_after + l2);  z = s l1 - l2 w
// Below, pulled and both divisors are multiplied by lr, which may be 0.
#pragma once

#include <cmath>

#include "core/optimizer/optimizer.h"

namespace dynemb {

struct Ftrl {
  static constexpr int kVectors = 2;
  static constexpr int kScalars = 0;
  static constexpr int kSums = 0;
  struct RowTerms {};

  DYNEMB_HD Ftrl(const OptimizerParameters& parameters, const StepOperands& operands)
      : learning_rate(operands.learning_rate),
        inverse_rate(learning_rate == 0.0f ? 0.0f : 1.0f / learning_rate),
        l1(parameters.l1),
        l2(parameters.l2),
        beta(parameters.epsilon),
        initial_sum(parameters.initial_sum) {}

  DYNEMB_HD RowTerms Row(float*, const float*, int) const { return {}; }
  DYNEMB_HD void Column(RowTerms, float g, float& w, float& z, float& n) const {
    n += g * g;
    const float root = beta + sqrtf(n + initial_sum);  // lr q
    const float slope = z + g;
    const float hold = root * w;
    const float pulled = learning_rate * slope - hold;
    const float side = copysignf(l1, pulled);
    // No gradient yet and nothing to divide by: the column stays as it is. Dividing by
    // infinity moves nothing.
    const bool still = root == 0.0f;
    const float divisor = still ? INFINITY : root + learning_rate * l2;
    const float moved = w - learning_rate * (slope + l2 * w - side) / divisor;
    // A NaN does not rest, and shows.
    const bool rests = fabsf(pulled) <= (still ? -1.0f : learning_rate * l1);
    // Within l1 but for rounding.
    const float held = slope - hold * inverse_rate;
    const float kept = still ? z : side - l2 * moved;
    w = rests ? 0.0f : moved;
    z = rests ? (fabsf(held) > l1 ? copysignf(l1, held) : held) : kept;
  }

  float learning_rate, inverse_rate, l1, l2, beta, initial_sum;
};
static_assert(UpdateRule<Ftrl>);

}  // namespace dynemb
