// w -= lr g, with both operations rounded: the same bits on CPU and GPU.
#pragma once

#include "core/exact_math.h"
#include "core/optimizer/optimizer.h"

namespace dynemb {

struct Sgd {
  static constexpr int kVectors = 0;
  static constexpr int kScalars = 0;
  static constexpr int kSums = 0;
  struct RowTerms {};

  DYNEMB_HD Sgd(const OptimizerParameters&, const StepOperands& operands)
      : learning_rate(operands.learning_rate) {}

  DYNEMB_HD RowTerms Row(float*, const float*, int) const { return {}; }
  DYNEMB_HD void Column(RowTerms, float g, float& w, float&, float&) const {
    w = Add(w, -Mul(learning_rate, g));
  }

  float learning_rate;
};
static_assert(UpdateRule<Sgd>);

}  // namespace dynemb
