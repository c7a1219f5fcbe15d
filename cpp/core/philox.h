// Philox4x32-10: a random function of a 128-bit counter and a 64-bit key.
// J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011.
#pragma once

#include <cstdint>

#include "core/annotations.h"

namespace dynemb {

struct PhiloxBlock {
  uint32_t word[4];
};

// One of the ten rounds, on one block. Loops over many blocks call it per round,
// which lets compilers work on several blocks at once.
DYNEMB_HD void PhiloxRound(uint32_t& c0, uint32_t& c1, uint32_t& c2, uint32_t& c3, uint32_t key0,
                           uint32_t key1) {
  uint64_t p0 = uint64_t{0xD2511F53u} * c0;
  uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
  c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ key0;
  c1 = static_cast<uint32_t>(p1);
  c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ key1;
  c3 = static_cast<uint32_t>(p0);
}

inline constexpr int kPhiloxRounds = 10;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u;
inline constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85u;

DYNEMB_HD PhiloxBlock Philox4x32(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  uint32_t* c = counter.word;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    PhiloxRound(c[0], c[1], c[2], c[3], key0, key1);
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return counter;
}

}  // namespace dynemb
