// g max_norm / |g| in place of g where |g|, over the row, is larger: before the rule, and
// before weight decay, neither of which knows of it.
// R. Pascanu, T. Mikolov, Y. Bengio, ICML 2013, with each row a parameter of its own.
#pragma once

#include <cmath>

#include "core/annotations.h"

namespace dynemb {

// The factor of a row's summed gradient. max_norm 0: none. sum_of_squares in double,
// where that of finite floats is finite. A NaN scales nothing, and shows.
DYNEMB_HD float ClipScale(float max_norm, double sum_of_squares) {
  const double norm = sqrt(sum_of_squares);
  const double limit = static_cast<double>(max_norm);
  return limit > 0.0 && norm > limit ? static_cast<float>(limit / norm) : 1.0f;
}

}  // namespace dynemb
