// Ids of a feature in blocks: decode, hash and probe many at once, so that the
// memory accesses of one block overlap.
#pragma once

#include <cstdint>

#include "core/bucket.h"
#include "core/hash.h"
#include "core/status.h"
#include "core/types.h"
#include "table/batch.h"

namespace dynemb {

inline constexpr int kBlock = 64;

// What the row array of a batch holds beside row numbers. The first two are what
// `index` shows (kPadded, kRefused).
inline constexpr int64_t kRowPadded = kPadded;
inline constexpr int64_t kRowRefused = kRefused;
inline constexpr int64_t kRowMissing = -3;

// Key at position `id` of the feature.
Key LoadKey(const FeatureInput& feature, int64_t id);

// kInvalidArgument if a length lies outside [0, bag_length], or row_splits are wrong.
Status CheckBags(const FeatureInput& feature);

// kInvalidArgument unless each group's splits rise from 0 to at most its capacity.
Status CheckRowSplits(const RowSplits& row_splits);

// rows[i] = row number, kRowMissing or kRowPadded of id begin + i, for i < count
// <= kBlock. Returns a checksum that depends on each key and its position.
uint64_t ProbeBlock(const IndexView& index, const FeatureInput& feature, int64_t begin, int count,
                    int64_t* rows);

}  // namespace dynemb
