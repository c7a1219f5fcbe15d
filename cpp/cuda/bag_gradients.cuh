// What ids of pooled features take of their bag's gradient.
#pragma once  // included by gradients.cu alone

#include "core/pool.h"
#include "core/row_splits.h"
#include "cuda/device_ops.cuh"
#include "cuda/gradient_call.h"

namespace dynemb {

// Features of a call in device memory, so many at a time.
inline constexpr int kPutFeatures = 128;
__global__ void __launch_bounds__(kPutFeatures)
    PutFeaturesKernel(const __grid_constant__ GradientListOf<kPutFeatures> some,
                      GradientParam* on_device) {
  const int f = static_cast<int>(threadIdx.x);
  if (f < some.count) on_device[f] = some.features[f];
}

// d pooled / d row of every bag of all features whose bags are of one length: one thread a
// bag.
template <class List>
__global__ void __launch_bounds__(kThreads) BagScalesKernel(const __grid_constant__ List list) {
  int low = 0, high = list.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (list.features[middle].first_bag_block <= blockIdx.x) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const GradientParam& feature = list.features[low];
  const int64_t bag = int64_t{blockIdx.x - feature.first_bag_block} * kThreads + threadIdx.x;
  if (bag >= feature.num_bags) return;
  BagSums sums;
  if (feature.combiner != Combiner::kSum) {
    const int64_t begin = bag * feature.bag_length;
    for (int64_t i = begin; i < begin + feature.bag_length; ++i) {
      if (feature.index[i] == kPadded) continue;
      sums.Add(feature.weights == nullptr ? 1.0f : feature.weights[i]);
    }
  }
  feature.bag_scales[bag] = BagScale(feature.combiner, sums);
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
