// The one place where the kind of an optimizer becomes a type.
#pragma once

#include "core/optimizer/adagrad.h"
#include "core/optimizer/adam.h"
#include "core/optimizer/ftrl.h"
#include "core/optimizer/lamb.h"
#include "core/optimizer/momentum.h"
#include "core/optimizer/optimizer.h"
#include "core/optimizer/partial_rowwise_adam.h"
#include "core/optimizer/rmsprop.h"
#include "core/optimizer/rowwise_adagrad.h"
#include "core/optimizer/sgd.h"
#include "core/optimizer/weight_decay.h"

namespace dynemb {

// Calls body.template operator()<Rule>() with the rule of `kind`.
template <class Body>
auto DispatchRule(OptimizerKind kind, Body&& body) {
  switch (kind) {
    case OptimizerKind::kAdagrad:
      return body.template operator()<L2Decay<Adagrad>>();
    case OptimizerKind::kAdam:
      return body.template operator()<L2Decay<Adam>>();
    case OptimizerKind::kAdamPerRow:
      return body.template operator()<L2Decay<AdamPerRow>>();
    case OptimizerKind::kAdamW:
      return body.template operator()<DecoupledDecay<Adam>>();
    case OptimizerKind::kAdamWPerRow:
      return body.template operator()<DecoupledDecay<AdamPerRow>>();
    case OptimizerKind::kFtrl:
      return body.template operator()<Ftrl>();
    case OptimizerKind::kLamb:
      return body.template operator()<Lamb>();
    case OptimizerKind::kMomentum:
      return body.template operator()<L2Decay<Momentum>>();
    case OptimizerKind::kNesterovMomentum:
      return body.template operator()<L2Decay<NesterovMomentum>>();
    case OptimizerKind::kPartialRowwiseAdam:
      return body.template operator()<PartialRowwiseAdam>();
    case OptimizerKind::kPartialRowwiseAdamPerRow:
      return body.template operator()<PartialRowwiseAdamPerRow>();
    case OptimizerKind::kRmsprop:
      return body.template operator()<L2Decay<Rmsprop>>();
    case OptimizerKind::kRowwiseAdagrad:
      return body.template operator()<L2Decay<RowwiseAdagrad>>();
    case OptimizerKind::kSgd:
      break;
  }
  return body.template operator()<L2Decay<Sgd>>();
}

}  // namespace dynemb
