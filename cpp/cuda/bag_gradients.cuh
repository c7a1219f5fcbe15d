// What ids of pooled features take of their bag's gradient.
#pragma once  // included by gradients.cu alone

#include "core/pool.h"
#include "core/row_splits.h"
#include "cuda/device_ops.cuh"

namespace dynemb {

// d pooled / d row of every bag: one thread a bag.
__global__ void __launch_bounds__(kThreads)
    BagScaleKernel(const int32_t* index, const float* weights, int64_t num_bags, int64_t bag_length,
                   Combiner combiner, float* scales) {
  const int64_t bag = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (bag >= num_bags) return;
  BagSums sums;
  for (int64_t i = bag * bag_length; i < (bag + 1) * bag_length; ++i) {
    if (index[i] != kPadded) sums.Add(weights == nullptr ? 1.0f : weights[i]);
  }
  scales[bag] = BagScale(combiner, sums);
}

// The same of bags by row splits, of whose ids none is padded: a warp a bag.
__global__ void __launch_bounds__(kThreads)
    RaggedScaleKernel(const GroupState* group, const __grid_constant__ RowSplits splits,
                      const float* weights, Combiner combiner, float* scales) {
  if (group->run == 0) return;  // splits may be wrong
  const int64_t bag = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (bag >= splits.num_groups * splits.num_bags) return;
  const IdRange ids = splits.Bag(bag);
  const double count = static_cast<double>(ids.end - ids.begin);
  BagSums sums{count, count, count};
  if (weights != nullptr && combiner != Combiner::kSum) {
    sums = BagSums{};
#pragma unroll 4
    for (int64_t i = ids.begin + Lane(); i < ids.end; i += 32) sums.Add(weights[i]);
    sums.weight = WarpSum(sums.weight);
    sums.absolute_weight = WarpSum(sums.absolute_weight);
    sums.squared_weight = WarpSum(sums.squared_weight);
  }
  if (Lane() == 0) scales[bag] = BagScale(combiner, sums);
}

// The bag of each id: one thread an id. Padding has no gradient, and gets a bag that exists.
__global__ void __launch_bounds__(kThreads)
    BagOfKernel(const GroupState* group, const __grid_constant__ RowSplits splits,
                uint32_t* bag_of) {
  if (group->run == 0) return;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= splits.NumIds()) return;
  const int64_t of_group = i / splits.capacity, position = i % splits.capacity;
  const int32_t* group_splits = splits.Group(of_group);
  int64_t low = 0, high = splits.num_bags;  // the last bag that begins at or before it
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (group_splits[middle] <= position) {
      low = middle;
    } else {
      high = middle;
    }
  }
  bag_of[i] = static_cast<uint32_t>(of_group * splits.num_bags + low);
}

}  // namespace dynemb
