// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) mean of g^2 over the row;
// w -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps), nothing while that divides by 0
// D. Kingma, J. Ba, ICLR 2015, with one second moment a row, as in FBGEMM's partial
// row-wise Adam. Lazy, and t as in adam.h.
#pragma once

#include <cmath>

#include "core/optimizer/adam.h"

namespace dynemb {

struct PartialRowwiseAdamRule : AdamRule {
  static constexpr int kVectors = 1;
  static constexpr int kSums = 1;  // of g^2
  struct RowTerms {
    float step_size;  // lr / (1 - b1^t)
    float divisor;
  };

  using AdamRule::AdamRule;

  DYNEMB_HD void Sum(float g, float, float, float, float* sums) const { sums[0] += g * g; }
  // Moves v, with the corrections of this step.
  DYNEMB_HD RowTerms Advance(AdamRule::RowTerms at, float sum, int dim, float* v) const {
    *v = beta2 * *v + rest2 * (sum / static_cast<float>(dim));
    const float divisor = sqrtf(*v) * at.inv_root_correct + epsilon;
    // Dividing by infinity moves nothing; a NaN is no 0, and shows.
    return {at.step_size, divisor == 0.0f ? INFINITY : divisor};
  }
  DYNEMB_HD void Column(RowTerms terms, float g, float& w, float& m, float&) const {
    m = beta1 * m + rest1 * g;
    w -= terms.step_size * m / terms.divisor;
  }
};

struct PartialRowwiseAdam : PartialRowwiseAdamRule {
  static constexpr int kScalars = 1;  // v, a float

  DYNEMB_HD PartialRowwiseAdam(const OptimizerParameters& parameters, const StepOperands& operands)
      : PartialRowwiseAdamRule(parameters, operands.learning_rate),
        of_step(TermsAt(static_cast<double>(operands.step) + 1.0)) {}

  DYNEMB_HD RowTerms Row(float* scalars, const float* sums, int dim) const {
    return Advance(of_step, sums[0], dim, &scalars[0]);
  }

  AdamRule::RowTerms of_step;
};
static_assert(UpdateRule<PartialRowwiseAdam>);

struct PartialRowwiseAdamPerRow : PartialRowwiseAdamRule {
  static constexpr int kScalars = 2;  // v, a float; steps of this row, an int32_t

  DYNEMB_HD PartialRowwiseAdamPerRow(const OptimizerParameters& parameters,
                                     const StepOperands& operands)
      : PartialRowwiseAdamRule(parameters, operands.learning_rate) {}

  DYNEMB_HD RowTerms Row(float* scalars, const float* sums, int dim) const {
    return Advance(TermsAt(NextCount(&scalars[1])), sums[0], dim, &scalars[0]);
  }
};
static_assert(UpdateRule<PartialRowwiseAdamPerRow>);

}  // namespace dynemb
