// From a key to the numbers that place it: home bucket, step between buckets,
// tag, and (later) the shard.
#pragma once

#include <cstdint>

#include "core/annotations.h"
#include "core/types.h"

namespace dynemb {

// The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable
// pseudorandom number generators", 2014). A bijection: two different keys never
// share all 64 bits.
DYNEMB_HD uint64_t Mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

DYNEMB_HD uint64_t SplitMix64(uint64_t x) { return Mix64(x + 0x9E3779B97F4A7C15ull); }

struct KeyHash {
  uint64_t bits;

  // Low bits choose the home bucket, so doubling looks at one more bit.
  DYNEMB_HD BucketIndex Home(uint64_t num_buckets) const {
    return BucketIndex{bits & (num_buckets - 1)};
  }
  // Odd, hence the path visits every bucket of a power-of-two table.
  DYNEMB_HD uint64_t Step() const { return (bits >> 32) | 1; }
  // 0 means an empty slot, so a tag is never 0.
  DYNEMB_HD uint8_t Tag() const {
    uint8_t top = static_cast<uint8_t>(bits >> 56);
    return top == 0 ? uint8_t{1} : top;
  }
};

DYNEMB_HD KeyHash HashKey(Key key) { return KeyHash{SplitMix64(key)}; }

}  // namespace dynemb
