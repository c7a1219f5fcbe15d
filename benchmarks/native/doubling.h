// What it costs when the index doubles.
#pragma once

#include <cstdint>

#include "device.h"

namespace dynemb::bench {

struct Sizes {
  uint64_t num_buckets;
  int64_t ids;  // of a call
  int repeats;

  int64_t Keys(double load) const;  // at a load of the slots
};

// Prints the lines of an index that is full at `max_load` and doubles.
void MeasureDoubling(Device& device, const Sizes& sizes, double max_load);

}  // namespace dynemb::bench
