// Keys that benchmarks make on the device, and an order to ask for them in.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

#include "core/hash.h"
#include "core/types.h"

namespace dynemb::bench {

// Tables hold keys number 0, 1, ...; those from here on are in no table.
inline constexpr uint64_t kAbsent = uint64_t{1} << 40;

DYNEMB_HD Key KeyNumber(uint64_t number) { return Mix64(number ^ 0x5851F42D4C957F2Dull); }

// A pseudo-random order of [0, count), so that neither buckets nor rows are asked for in
// the order of insertion: a bijection of the next power of two, repeated until it
// lands inside.
struct Shuffle {
  uint64_t count, mask;
  int shift;

  explicit Shuffle(int64_t keys)
      : count(static_cast<uint64_t>(keys)),
        mask(std::bit_ceil(count) - 1),
        shift(std::bit_width(mask) / 2) {}

  DYNEMB_HD uint64_t Once(uint64_t x) const {
    x = (x * 0xBF58476D1CE4E5B9ull + 0x2545F4914F6CDD1Dull) & mask;
    x ^= x >> shift;
    x = (x * 0x94D049BB133111EBull) & mask;
    x ^= x >> (shift - 1);
    x = (x * 0xD6E8FEB86659FD93ull) & mask;
    return x ^ (x >> shift);
  }
  DYNEMB_HD uint64_t operator[](uint64_t position) const {
    do {
      position = Once(position);
    } while (position >= count);
    return position;
  }
};

}  // namespace dynemb::bench
