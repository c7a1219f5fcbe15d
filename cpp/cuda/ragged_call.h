// Features of a call whose bags are given by row splits: what is to be checked, and scratch
// to pool them in chunks (ragged_kernels.cuh).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/pool.h"
#include "core/row_layout.h"
#include "core/row_splits.h"
#include "cuda/scratch.h"
#include "table/batch.h"

namespace dynemb {

// Ids that a warp pools.
inline constexpr int kChunkIds = 128;

DYNEMB_HD int64_t ChunksOfGroup(int64_t capacity) { return (capacity + kChunkIds - 1) / kChunkIds; }

// Ids that lengths or splits divide into those that are meant and padding.
inline int64_t IdsOfRun(const FeatureInput& feature) {
  return feature.padding == Padding::kSplits ? feature.row_splits.capacity : feature.bag_length;
}

// Shares of bags that lie in several chunks. Of each chunk: that of a bag that began in an
// earlier one, and that of a bag that begins here and ends in a later one.
struct RaggedScratch {
  float* shares;  // [chunks, 2, stride]
  BagSums* sums;  // [chunks, 2]
  int64_t stride;

  DYNEMB_HD float* Share(int64_t chunk, bool begins) const {
    return shares + (2 * chunk + begins) * stride;
  }
  DYNEMB_HD BagSums& Sums(int64_t chunk, bool begins) const { return sums[2 * chunk + begins]; }
};

struct RaggedCall {
  std::vector<RowSplits> splits;
  int64_t chunks = 0;  // of the pooled ones
  int64_t stride = 4;
  RaggedScratch scratch{};

  // Books a feature of any padding; returns the number of its first chunk.
  int64_t Add(const FeatureInput& feature, int dim) {
    const int64_t first = chunks;
    if (feature.padding != Padding::kSplits) return first;
    splits.push_back(feature.row_splits);
    if (feature.combiner == Combiner::kNone) return first;
    chunks += feature.row_splits.num_groups * ChunksOfGroup(feature.row_splits.capacity);
    stride = std::max<int64_t>(stride, RowLayout::Padded(dim));
    return first;
  }

  Status Allocate(const Executor& exec) {
    if (chunks == 0) return Status();
    ScratchPlan plan;
    const size_t shares = plan.Add<float>(2 * chunks * stride);
    const size_t sums = plan.Add<BagSums>(2 * chunks);
    DYNEMB_RETURN_IF_ERROR(plan.Allocate(exec));
    scratch = {plan.At<float>(shares), plan.At<BagSums>(sums), stride};
    return Status();
  }
};

}  // namespace dynemb
