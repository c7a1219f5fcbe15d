// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;
// w -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
// D. Kingma, J. Ba, ICLR 2015. Lazy: only rows of the batch move. t is the
// number of steps of the whole group (Adam) or of the row itself (AdamPerRow),
// each counting the current one.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/optimizer/optimizer.h"

namespace dynemb {

// 1 - beta^t. Through expm1, since 1 - powf loses every digit while beta^t is
// near 1.
DYNEMB_HD float BiasCorrection(double beta, double t) {
  return static_cast<float>(-expm1(t * log(beta)));
}

// Counts a step of a row, whose count lies in the place of a float.
DYNEMB_HD double NextCount(float* place) {
  int32_t count;
  memcpy(&count, place, sizeof count);
  ++count;
  memcpy(place, &count, sizeof count);
  return static_cast<double>(count);
}

struct AdamRule {
  struct RowTerms {
    float step_size;         // lr / (1 - b1^t)
    float inv_root_correct;  // 1 / sqrt(1 - b2^t)
  };

  // 1 - beta is rounded once, from double: 1 - 0.999f is off by 1.3e-5.
  DYNEMB_HD AdamRule(const OptimizerParameters& parameters, float learning_rate)
      : rate(learning_rate),
        beta1(static_cast<float>(parameters.beta1)),
        beta2(static_cast<float>(parameters.beta2)),
        rest1(static_cast<float>(1.0 - parameters.beta1)),
        rest2(static_cast<float>(1.0 - parameters.beta2)),
        exact_beta1(parameters.beta1),
        exact_beta2(parameters.beta2),
        epsilon(parameters.epsilon) {}

  DYNEMB_HD RowTerms TermsAt(double t) const {
    return {rate / BiasCorrection(exact_beta1, t), 1.0f / sqrtf(BiasCorrection(exact_beta2, t))};
  }
  DYNEMB_HD void Column(RowTerms terms, float g, float& w, float& m, float& v) const {
    m = beta1 * m + rest1 * g;
    v = beta2 * v + rest2 * (g * g);
    w -= terms.step_size * m / (sqrtf(v) * terms.inv_root_correct + epsilon);
  }

  float rate, beta1, beta2, rest1, rest2;
  double exact_beta1, exact_beta2;
  float epsilon;
};

struct Adam : AdamRule {
  static constexpr int kVectors = 2;
  static constexpr int kScalars = 0;
  static constexpr int kSums = 0;

  DYNEMB_HD Adam(const OptimizerParameters& parameters, const StepOperands& operands)
      : AdamRule(parameters, operands.learning_rate),
        of_step(TermsAt(static_cast<double>(operands.step) + 1.0)) {}

  DYNEMB_HD RowTerms Row(float*, const float*, int) const { return of_step; }

  RowTerms of_step;
};
static_assert(UpdateRule<Adam>);

struct AdamPerRow : AdamRule {
  static constexpr int kVectors = 2;
  static constexpr int kScalars = 1;  // steps of this row
  static constexpr int kSums = 0;

  DYNEMB_HD AdamPerRow(const OptimizerParameters& parameters, const StepOperands& operands)
      : AdamRule(parameters, operands.learning_rate) {}

  DYNEMB_HD RowTerms Row(float* scalars, const float*, int) const {
    return TermsAt(NextCount(scalars));
  }
};
static_assert(UpdateRule<AdamPerRow>);

}  // namespace dynemb
