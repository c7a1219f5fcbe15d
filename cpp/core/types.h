// The nouns that all layers share. Two integers that could be swapped are two
// types: a row is never a bucket.
#pragma once

#include <cstdint>

namespace dynemb {

using Key = uint64_t;  // every value is legal
using Bytes = int64_t;

// Number of a row in its pool. Rows never move, so it stays valid until the
// row's key is erased.
enum class RowIndex : int64_t {};
inline constexpr RowIndex kNoRow{-1};

enum class BucketIndex : uint64_t {};

// How a looked-up id of a batch was served; non-negative values are positions
// in the batch's list of unique rows. Mirrored by dynemb_jax._primitives.
inline constexpr int32_t kPadded = -1;
inline constexpr int32_t kRefused = -2;

enum class Combiner : int32_t { kNone = 0, kSum = 1, kMean = 2, kSqrtN = 3 };

}  // namespace dynemb
