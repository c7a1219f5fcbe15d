// Rows drawn to zero, around a rule that knows nothing of it. Lazy: only rows of the
// batch decay.
//   L2Decay         g + wd w in place of g, in the rule's sums too
//   DecoupledDecay  w -= lr wd w (of the w before) beside the rule's own step:
//                   I. Loshchilov, F. Hutter, ICLR 2019, with lr as in optax.adamw
#pragma once

#include "core/exact_math.h"
#include "core/optimizer/optimizer.h"

namespace dynemb {

template <UpdateRule Rule>
struct L2Decay : Rule {
  DYNEMB_HD L2Decay(const OptimizerParameters& parameters, const StepOperands& operands)
      : Rule(parameters, operands), weight_decay(parameters.weight_decay) {}

  // Without decay g itself, whatever w is: 0 times a row that is not finite is a NaN.
  // All rows take the same side, so a loop over columns is split once, not tested inside.
  DYNEMB_HD float Decayed(float g, float w) const {
    return weight_decay == 0.0f ? g : Add(g, Mul(weight_decay, w));
  }
  DYNEMB_HD void Sum(float g, float w, float s0, float s1, float* sums) const {
    Rule::Sum(Decayed(g, w), w, s0, s1, sums);
  }
  DYNEMB_HD void Column(typename Rule::RowTerms terms, float g, float& w, float& s0,
                        float& s1) const {
    Rule::Column(terms, Decayed(g, w), w, s0, s1);
  }

  float weight_decay;
};

template <UpdateRule Rule>
struct DecoupledDecay : Rule {
  DYNEMB_HD DecoupledDecay(const OptimizerParameters& parameters, const StepOperands& operands)
      : Rule(parameters, operands), shrinkage(operands.learning_rate * parameters.weight_decay) {}

  DYNEMB_HD void Column(typename Rule::RowTerms terms, float g, float& w, float& s0,
                        float& s1) const {
    const float loss = shrinkage * w;
    Rule::Column(terms, g, w, s0, s1);
    w -= loss;
  }

  float shrinkage;
};

}  // namespace dynemb
