// First value of a row: a pure function of (seed, table name, key, column).
// Philox is keyed by (seed, table) and counts by (key, column / 4), so neither
// order, nor batch, shard or platform can change it.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/annotations.h"
#include "core/exact_math.h"
#include "core/hash.h"
#include "core/philox.h"
#include "core/types.h"

namespace dynemb {

enum class InitializerKind : int32_t {
  kConstant = 0,
  kUniform = 1,
  kNormal = 2,
  kTruncatedNormal = 3,
};

struct RowInitializer {
  InitializerKind kind;
  float parameter;  // the constant; half the width; the standard deviation
  uint64_t stream;  // Philox key: RowInitStream(seed, table name)
};

// FNV-1a: names are short, and the seed is mixed before it meets them.
inline uint64_t RowInitStream(uint64_t seed, std::string_view table_name) {
  uint64_t name = 0xCBF29CE484222325ull;
  for (char c : table_name) {
    name = (name ^ static_cast<uint8_t>(c)) * 0x100000001B3ull;
  }
  return SplitMix64(seed) ^ name;
}

// Mass of the standard normal below -2, and between -2 and 0.
inline constexpr float kTailBelowMinusTwo = 0.0227501319481792f;
inline constexpr float kHalfWithinTwo = 0.954499736103642f;

DYNEMB_HD float UniformValue(uint32_t random, float scale) {
  // 24 bits: u and 2u - 1 are exact, the product is rounded once.
  float u = Mul(static_cast<float>(static_cast<int32_t>(random >> 8)), 0x1p-24f);
  return Mul(Add(Mul(2.0f, u), -1.0f), scale);
}

// Lower-tail probability in (0, 1/2] from 31 bits; the top bit is the sign.
DYNEMB_HD float TailProbability(uint32_t random) {
  return Mul(Add(static_cast<float>(static_cast<int32_t>(random & 0x7FFFFFFFu)), 0.5f), 0x1p-32f);
}

DYNEMB_HD float NormalValue(uint32_t random, float stddev) {
  float z = HalfNormalQuantile(TailProbability(random));
  return Mul(stddev, (random >> 31) != 0 ? z : -z);
}

DYNEMB_HD float TruncatedNormalValue(uint32_t random, float stddev) {
  float z =
      HalfNormalQuantile(Add(kTailBelowMinusTwo, Mul(TailProbability(random), kHalfWithinTwo)));
  z = z > 2.0f ? 2.0f : z;  // the last bit of the tail's mass
  return Mul(stddev, (random >> 31) != 0 ? z : -z);
}

DYNEMB_HD float InitialValue(const RowInitializer& init, uint32_t random) {
  switch (init.kind) {
    case InitializerKind::kConstant:
      break;
    case InitializerKind::kUniform:
      return UniformValue(random, init.parameter);
    case InitializerKind::kNormal:
      return NormalValue(random, init.parameter);
    case InitializerKind::kTruncatedNormal:
      return TruncatedNormalValue(random, init.parameter);
  }
  return init.parameter;
}

// Writes columns [0, dim) of a new row.
DYNEMB_HD void InitRow(const RowInitializer& init, Key key, int dim, float* row) {
  if (init.kind == InitializerKind::kConstant) {
    for (int column = 0; column < dim; ++column) row[column] = init.parameter;
    return;
  }
  for (int first = 0; first < dim; first += 4) {
    PhiloxBlock block =
        Philox4x32({{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32),
                     static_cast<uint32_t>(first / 4), 0u}},
                   static_cast<uint32_t>(init.stream), static_cast<uint32_t>(init.stream >> 32));
    int columns = dim - first < 4 ? dim - first : 4;
    for (int i = 0; i < columns; ++i) row[first + i] = InitialValue(init, block.word[i]);
  }
}

}  // namespace dynemb
