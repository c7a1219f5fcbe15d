// What an optimizer is to the engine: how much state a row carries, and how one
// column moves. Rows of a step are independent, each is updated once.
#pragma once

#include <concepts>
#include <cstdint>

#include "core/annotations.h"

namespace dynemb {

enum class OptimizerKind : int32_t {
  kSgd = 0,
  kAdagrad = 1,
  kAdam = 2,
  kAdamPerRow = 3,
  kMomentum = 4,
  kNesterovMomentum = 5,
  kRowwiseAdagrad = 6,
  kRmsprop = 7,
  kAdamW = 8,
  kAdamWPerRow = 9,
  kPartialRowwiseAdam = 10,
  kPartialRowwiseAdamPerRow = 11,
  kFtrl = 12,
  kLamb = 13,
};
inline constexpr int kOptimizerKinds = 14;

// The numbers of an optimizer; each kind says which it reads.
struct OptimizerParameters {
  OptimizerKind kind;
  double beta1, beta2;
  float epsilon;
  float initial_state;   // first value of every state column
  float initial_scalar;  // first value of every number per row
  float weight_decay;    // weight_decay.h
  float l1, l2;          // FTRL's penalties
  float initial_sum;     // FTRL's first sum of squares
  float max_grad_norm;   // of any kind: clip.h; 0: none
};

// Operands of one step, equal for all rows.
struct StepOperands {
  float learning_rate;
  int64_t step;  // updates done before this one
};

template <class Rule>
concept SumsWhatItNeeds = Rule::kSums == 0 || requires(const Rule rule, float x, float* sums) {
  { rule.Sum(x, x, x, x, sums) } -> std::same_as<void>;
};

// A rule is a type with
//   kVectors   state vectors of `dim` columns each
//   kScalars   numbers per row behind them (whole numbers as the bits of a float)
//   kSums      sums over a row's columns that its terms need, at most 2
//   Rule(parameters, operands)            once a step
//   Sum(g, w, s0, s1, sums)               once a column, adds its share; if kSums > 0
//   Row(scalars, sums, dim) -> RowTerms   once a row, may advance the scalars
//   Column(terms, g, w, s0, s1)           once a column; unused states are dummies
template <class Rule>
concept UpdateRule = requires(const Rule rule, float* scalars, float g, float& w, float& s) {
  { Rule::kVectors } -> std::convertible_to<int>;
  { Rule::kScalars } -> std::convertible_to<int>;
  { Rule::kSums } -> std::convertible_to<int>;
  { rule.Row(scalars, scalars, 1) };
  { rule.Column(rule.Row(scalars, scalars, 1), g, w, s, s) } -> std::same_as<void>;
  requires Rule::kVectors <= 2 && Rule::kSums <= 2;
  requires SumsWhatItNeeds<Rule>;
};

}  // namespace dynemb
