// How the columns of a row are kept: as floats, or as 16 bits each, rounded to the
// nearest or by chance. All of it is integer arithmetic and exact float operations, so
// that CPU and GPU round to the same bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/annotations.h"
#include "core/exact_math.h"
#include "core/hash.h"
#include "core/philox.h"
#include "core/types.h"

namespace dynemb {

enum class RowType : int32_t { kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2 };

DYNEMB_HD uint32_t BitsOf(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
DYNEMB_HD float FloatOf(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

inline constexpr uint32_t kFloatInfinity = 0x7F800000u;
inline constexpr uint32_t kHalfOverflow = 0x477FF000u;  // 65520: the nearest half is infinite
inline constexpr uint32_t kHalfNormal = 0x38800000u;    // 2^-14, the smallest normal half
inline constexpr uint32_t kHalfRebias = 0x38000000u;    // exponent biases 127 and 15 apart

DYNEMB_HD uint16_t NearestBfloat16(float x) {
  const uint32_t bits = BitsOf(x);
  if ((bits & 0x7FFFFFFFu) > kFloatInfinity) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

DYNEMB_HD uint16_t NearestHalf(float x) {
  const uint32_t bits = BitsOf(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7FFFFFFFu;
  uint32_t half;
  if (size > kFloatInfinity) {
    half = 0x7E00u;
  } else if (size >= kHalfOverflow) {
    half = 0x7C00u;
  } else if (size >= kHalfNormal) {
    half = (size + 0xFFFu + (size >> 13 & 1u) - kHalfRebias) >> 13;
  } else {
    // 1/2 has the unit in the last place that halves have below 2^-14.
    half = BitsOf(Add(FloatOf(size), 0.5f)) - BitsOf(0.5f);
  }
  return static_cast<uint16_t>(sign | half);
}

DYNEMB_HD float FloatOfHalf(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, size = half & 0x7FFFu;
  if (size >= 0x7C00u) return FloatOf(sign | kFloatInfinity | (size & 0x3FFu) << 13);
  if (size >= 0x400u) return FloatOf(sign | ((size << 13) + kHalfRebias));
  return FloatOf(sign | BitsOf(Mul(static_cast<float>(static_cast<int32_t>(size)), 0x1p-24f)));
}

DYNEMB_HD float FloatOf16(RowType type, uint16_t bits) {
  return type == RowType::kBfloat16 ? FloatOf(uint32_t{bits} << 16) : FloatOfHalf(bits);
}

DYNEMB_HD uint16_t Nearest16(RowType type, float x) {
  return type == RowType::kBfloat16 ? NearestBfloat16(x) : NearestHalf(x);
}

// x rounded up or down, either as often as x is near: the mean over `random`, of 16 bits,
// is x. What the nearest is infinite for, or x itself not finite, is as it is there.
DYNEMB_HD uint16_t Stochastic16(RowType type, float x, uint32_t random) {
  const uint32_t bits = BitsOf(x), size = bits & 0x7FFFFFFFu;
  if (size >= kFloatInfinity) return Nearest16(type, x);
  if (type == RowType::kBfloat16) {
    const uint32_t rounded = (bits + random) >> 16;
    const bool overflows = (rounded & 0x7FFFu) >= kFloatInfinity >> 16;
    return overflows ? NearestBfloat16(x) : static_cast<uint16_t>(rounded);
  }
  uint32_t half;
  if (size >= kHalfOverflow) {
    half = 0x7C00u;
  } else if (size >= kHalfNormal) {
    half = (size + (random & 0x1FFFu) - kHalfRebias) >> 13;
    if (half >= 0x7C00u) half = 0x7BFFu;
  } else {
    const float units = Mul(FloatOf(size), 0x1p24f);
    const uint32_t whole = static_cast<uint32_t>(units);
    const float rest = Add(units, -static_cast<float>(static_cast<int32_t>(whole)));
    const float chance = Mul(rest, 65536.0f);
    half = whole + (static_cast<float>(static_cast<int32_t>(random)) < chance ? 1u : 0u);
  }
  return static_cast<uint16_t>((bits >> 16 & 0x8000u) | half);
}

// Random bits of one update of a table: Philox, keyed by seed, table name and step, and
// counted by key and column, so neither order, nor batch, thread or platform changes them.
struct RowRounding {
  uint64_t stream;

  // stream: RowInitStream(seed, table name)
  DYNEMB_HD RowRounding(uint64_t table_stream, int64_t step)
      : stream(SplitMix64(table_stream ^ SplitMix64(static_cast<uint64_t>(step)))) {}

  // Of columns [8 block, 8 block + 8), 16 bits each, low halves first.
  DYNEMB_HD PhiloxBlock Random(Key key, int block) const {
    return Philox4x32({{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32),
                        static_cast<uint32_t>(block), 1u}},
                      static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32));
  }
};

DYNEMB_HD void RoundRow(RowType type, const RowRounding& rounding, Key key, const float* values,
                        int dim, uint16_t* row) {
  for (int first = 0; first < dim; first += 8) {
    const PhiloxBlock random = rounding.Random(key, first / 8);
    const int columns = dim - first < 8 ? dim - first : 8;
    for (int i = 0; i < columns; ++i) {
      const uint32_t word = random.word[i / 2];
      row[first + i] =
          Stochastic16(type, values[first + i], i % 2 == 0 ? word & 0xFFFFu : word >> 16);
    }
  }
}

}  // namespace dynemb
