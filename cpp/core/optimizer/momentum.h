// t = g + mu t;  w -= lr t, or in Nesterov's form w -= lr (g + mu t)
// B. Polyak, 1964; I. Sutskever et al., ICML 2013, in the form of optax.sgd. Lazy:
// t of a row decays only in steps that contain the row.
#pragma once

#include "core/optimizer/optimizer.h"

namespace dynemb {

template <bool kNesterov>
struct MomentumRule {
  static constexpr int kVectors = 1;
  static constexpr int kScalars = 0;
  static constexpr int kSums = 0;
  struct RowTerms {};

  DYNEMB_HD MomentumRule(const OptimizerParameters& parameters, const StepOperands& operands)
      : learning_rate(operands.learning_rate), momentum(static_cast<float>(parameters.beta1)) {}

  DYNEMB_HD RowTerms Row(float*, const float*, int) const { return {}; }
  DYNEMB_HD void Column(RowTerms, float g, float& w, float& t, float&) const {
    t = g + momentum * t;
    w -= learning_rate * (kNesterov ? g + momentum * t : t);
  }

  float learning_rate, momentum;
};

using Momentum = MomentumRule<false>;
using NesterovMomentum = MomentumRule<true>;
static_assert(UpdateRule<Momentum> && UpdateRule<NesterovMomentum>);

}  // namespace dynemb
