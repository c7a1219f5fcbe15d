// Rows pooled in bags. Where row numbers come from is a parameter: of a find or of a
// training lookup.
#pragma once

#include "core/pool.h"
#include "cuda/gather_kernels.cuh"

namespace dynemb {

// A bag's rows, summed by one warp. Its ids' counts are added up by all lanes alike.
template <int VEC, class Rows>
__device__ void PoolBag(const GatherRing& ring, const Rows& rows, const TableView& table,
                        const FeatureParam& feature, int64_t bag, IdCounts* counts) {
  const int dim = table.layout.dim;
  const Teams<VEC> teams(LanesOfRow(dim, 1));
  for (int start = 0; start < dim; start += teams.columns()) {
    const int column = start + teams.column();
    const bool active = column < dim;
    // A float sum of 32 rows at a time, those in double: a bag may hold a million ids.
    double total[VEC] = {};
    BagSums sums;
    for (int64_t base = 0; base < feature.bag_length; base += 32) {
      const int64_t i = bag * feature.bag_length + base + Lane();
      const int length = static_cast<int>(min(int64_t{32}, feature.bag_length - base));
      int64_t row = kRowPadded;
      float weight = 0.0f;
      if (Lane() < length) {
        row = rows.Resolve(table, feature, i);
        if (start == 0) rows.Number(table, feature, i, row);
        weight = feature.weights == nullptr ? 1.0f : feature.weights[i];
      }
      if (start == 0) counts->Add(row, Lane() < length);
      if (row != kRowPadded) sums.Add(weight);
      const int turns = (length + teams.count() - 1) / teams.count();
      Piece<VEC> part = Piece<VEC>::Filled(0.0f);
      for (int turn = 0; turn < turns + ring.kAhead; ++turn) {
        const int64_t from = __shfl_sync(kFullWarp, row, turn * teams.count() + teams.team);
        if (turn < turns && active && from >= 0) {
          ring.Copy<VEC>(turn, 0, table.Row(from) + column);
        }
        ring.Turn();
        const int done = turn - ring.kAhead;
        if (done < 0) continue;
        const int source = done * teams.count() + teams.team;
        const int64_t of = __shfl_sync(kFullWarp, row, source);
        const float w = __shfl_sync(kFullWarp, weight, source);
        if (active && of >= 0) part.AddScaled(w, ring.Read<VEC>(done, 0));
      }
      teams.Combine(&part);
      unsigned missing = __ballot_sync(kFullWarp, row == kRowRefused);
      while (missing != 0) {
        const int source = __ffs(static_cast<int>(missing)) - 1;
        missing &= missing - 1;
        const Key key = LoadKeyOnDevice(feature, i - Lane() + source);
        const float w = __shfl_sync(kFullWarp, weight, source);
        if (active) part.AddScaled(w, MissingPiece<VEC>(table, key, column));
      }
      for (int v = 0; v < VEC; ++v) total[v] += static_cast<double>(part.value[v]);
    }
    sums.weight = WarpSum(sums.weight);
    sums.absolute_weight = WarpSum(sums.absolute_weight);
    sums.squared_weight = WarpSum(sums.squared_weight);
    const double scale = static_cast<double>(BagScale(feature.combiner, sums));
    Piece<VEC> pooled;
    for (int v = 0; v < VEC; ++v) pooled.value[v] = static_cast<float>(total[v] * scale);
    if (active && teams.team == 0) pooled.StoreStreaming(feature.rows_out + bag * dim + column);
  }
}

// Where features are pooled: a bag a warp.
template <class List, class Rows>
__global__ void __launch_bounds__(kThreads, 4)
    PoolKernel(const __grid_constant__ List list, const TableView* views, Rows rows) {
  __shared__ RingMemory<kThreads, kGatherStages, 1> memory;
  const FeatureParam& feature = FeatureOfBlock(list);
  const TableView& table = views[feature.table];
  const int64_t bag =
      int64_t{blockIdx.x - feature.first_block} * (kThreads / 32) + threadIdx.x / 32;
  const bool in_range = bag < feature.num_outputs;
  if (rows.Poisoned()) {
    if (!in_range) return;
    for (int64_t j = Lane(); j < feature.bag_length; j += 32) {
      rows.Poison(feature, bag * feature.bag_length + j);
    }
    PoisonRows(table, feature, bag, 1);
    return;
  }
  IdCounts counts;
  if (in_range && table.layout.dim % 4 == 0) {
    PoolBag<4>(memory.Mine(), rows, table, feature, bag, &counts);
  } else if (in_range) {
    PoolBag<1>(memory.Mine(), rows, table, feature, bag, &counts);
  }
  rows.Count(feature, counts);
}

template <class Rows>
void LaunchPool(const FeatureList& all, const TableView* views, const Rows& rows,
                cudaStream_t stream) {
  WithFeatures(all, GatherKind::kPooled, [&](uint32_t blocks, const auto& some) {
    PoolKernel<<<blocks, kThreads, 0, stream>>>(some, views, rows);
  });
}

}  // namespace dynemb
