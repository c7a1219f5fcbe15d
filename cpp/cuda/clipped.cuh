// Rules whose rows' summed gradients are clipped first (core/optimizer/clip.h).
#pragma once

#include "core/optimizer/clip.h"
#include "core/optimizer/optimizer.h"

namespace dynemb {

// The same rule, for kernels that find the norm of each row's gradient.
template <class Rule>
struct Clipped : Rule {
  DYNEMB_HD Clipped(const OptimizerParameters& parameters, const StepOperands& operands)
      : Rule(parameters, operands), max_grad_norm(parameters.max_grad_norm) {}

  DYNEMB_HD bool Clips() const { return max_grad_norm > 0.0f; }
  DYNEMB_HD float ClipScaleOf(double sum_of_squares) const {
    return ClipScale(max_grad_norm, sum_of_squares);
  }

  float max_grad_norm;
};

template <class Rule>
inline constexpr bool kClips = requires(const Rule rule) { rule.max_grad_norm; };

}  // namespace dynemb
