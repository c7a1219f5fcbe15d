#include "cpu/init_row.h"

#include <algorithm>

#include "core/annotations.h"
#include "core/philox.h"

namespace dynemb {
namespace {

constexpr int kLanes = 8;  // Philox blocks at a time
constexpr int kColumns = 4 * kLanes;

// Random words of columns [4 first_block, 4 first_block + kColumns).
DYNEMB_MULTIVERSION
void RandomColumns(Key key, uint64_t stream, uint32_t first_block, uint32_t* words) {
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    c0[lane] = static_cast<uint32_t>(key);
    c1[lane] = static_cast<uint32_t>(key >> 32);
    c2[lane] = first_block + lane;
    c3[lane] = 0;
  }
  uint32_t key0 = static_cast<uint32_t>(stream);
  uint32_t key1 = static_cast<uint32_t>(stream >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (int lane = 0; lane < kLanes; ++lane) {
      PhiloxRound(c0[lane], c1[lane], c2[lane], c3[lane], key0, key1);
    }
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    words[4 * lane] = c0[lane];
    words[4 * lane + 1] = c1[lane];
    words[4 * lane + 2] = c2[lane];
    words[4 * lane + 3] = c3[lane];
  }
}

DYNEMB_MULTIVERSION
void Uniform(const uint32_t* words, float scale, int count, float* out) {
  for (int i = 0; i < count; ++i) out[i] = UniformValue(words[i], scale);
}

DYNEMB_MULTIVERSION
void Normal(const uint32_t* words, float stddev, int count, float* out) {
  for (int i = 0; i < count; ++i) out[i] = NormalValue(words[i], stddev);
}

DYNEMB_MULTIVERSION
void TruncatedNormal(const uint32_t* words, float stddev, int count, float* out) {
  for (int i = 0; i < count; ++i) out[i] = TruncatedNormalValue(words[i], stddev);
}

}  // namespace

void InitRowOnHost(const RowInitializer& init, Key key, int dim, float* row) {
  if (init.kind == InitializerKind::kConstant) {
    std::fill(row, row + dim, init.parameter);
    return;
  }
  uint32_t words[kColumns];
  for (int first = 0; first < dim; first += kColumns) {
    RandomColumns(key, init.stream, static_cast<uint32_t>(first / 4), words);
    const int count = std::min(kColumns, dim - first);
    switch (init.kind) {
      case InitializerKind::kConstant:
        break;  // above
      case InitializerKind::kUniform:
        Uniform(words, init.parameter, count, row + first);
        break;
      case InitializerKind::kNormal:
        Normal(words, init.parameter, count, row + first);
        break;
      case InitializerKind::kTruncatedNormal:
        TruncatedNormal(words, init.parameter, count, row + first);
        break;
    }
  }
}

}  // namespace dynemb
