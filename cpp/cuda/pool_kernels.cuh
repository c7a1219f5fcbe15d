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
    PoolLongBagsKernel(const __grid_constant__ List list, const TableView* views, Rows rows) {
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

// What the lanes of a warp know together of its short bags.
struct BagMemory {
  int64_t rows[kBagsPerWarp * kShortBag];
  float weights[kBagsPerWarp * kShortBag];
  double scales[kBagsPerWarp];
};

// Some bags of at most kShortBag ids, by one warp: all rows are found first, then the
// teams stream their bags through the ring, one behind the other.
template <int VEC>
__device__ void PoolBags(const GatherRing& ring, const TableView& table,
                         const FeatureParam& feature, int64_t first_bag, int num_bags,
                         const BagMemory& memory) {
  const int dim = table.layout.dim, length = static_cast<int>(feature.bag_length);
  const Teams<VEC> teams(LanesOfRow(dim, 1));
  // Positions of the team's bags, in the order in which it takes them.
  const int turns = (num_bags + teams.count() - 1) / teams.count() * length;
  for (int start = 0; start < dim; start += teams.columns()) {
    const int column = start + teams.column();
    const bool active = column < dim;
    Piece<VEC> sum = Piece<VEC>::Filled(0.0f);
    int ahead = teams.team, ahead_at = 0, bag = teams.team, at = 0;
    for (int turn = 0; turn < turns + ring.kAhead; ++turn) {
      if (turn < turns && ahead < num_bags && active) {
        const int64_t from = memory.rows[ahead * length + ahead_at];
        if (from >= 0) ring.Copy<VEC>(turn, 0, table.Row(from) + column);
      }
      if (++ahead_at == length) {
        ahead_at = 0;
        ahead += teams.count();
      }
      ring.Turn();
      const int done = turn - ring.kAhead;
      if (done < 0) continue;
      if (bag < num_bags && active) {
        const int position = bag * length + at;
        const int64_t row = memory.rows[position];
        if (row >= 0) sum.AddScaled(memory.weights[position], ring.Read<VEC>(done, 0));
        if (row == kRowRefused) {
          const Key key = LoadKeyOnDevice(feature, first_bag * length + position);
          sum.AddScaled(memory.weights[position], MissingPiece<VEC>(table, key, column));
        }
        if (at + 1 == length) {
          for (float& value : sum.value) {
            value = static_cast<float>(static_cast<double>(value) * memory.scales[bag]);
          }
          sum.StoreStreaming(feature.rows_out + (first_bag + bag) * dim + column);
          sum = Piece<VEC>::Filled(0.0f);
        }
      }
      if (++at == length) {
        at = 0;
        bag += teams.count();
      }
    }
  }
}

// A warp takes kBagsPerWarp bags.
template <class List, class Rows>
__global__ void __launch_bounds__(kThreads, 3)
    PoolShortBagsKernel(const __grid_constant__ List list, const TableView* views, Rows rows) {
  __shared__ RingMemory<kThreads, kGatherStages, 1> ring;
  __shared__ BagMemory memories[kThreads / 32];
  BagMemory& memory = memories[threadIdx.x / 32];
  const FeatureParam& feature = FeatureOfBlock(list);
  const TableView& table = views[feature.table];
  const int64_t warp =
      int64_t{blockIdx.x - feature.first_block} * (kThreads / 32) + threadIdx.x / 32;
  const int64_t first_bag = warp * kBagsPerWarp;
  const int num_bags = static_cast<int>(
      max(int64_t{0}, min(int64_t{kBagsPerWarp}, feature.num_outputs - first_bag)));
  const int length = static_cast<int>(feature.bag_length);
  const int64_t first = first_bag * length, end = first + num_bags * length;
  if (rows.Poisoned()) {
    for (int64_t i = first + Lane(); i < end; i += 32) rows.Poison(feature, i);
    PoisonRows(table, feature, first_bag, num_bags);
    return;
  }
  int64_t mine[kBagsPerWarp * kShortBag / 32];
  rows.Resolve(table, feature, first + Lane(), end, mine);
  IdCounts counts;
#pragma unroll
  for (int n = 0; n < kBagsPerWarp * kShortBag / 32; ++n) {
    const int position = 32 * n + Lane();
    const int64_t i = first + position;
    counts.Add(mine[n], i < end);
    if (i >= end) continue;
    rows.Number(table, feature, i, mine[n]);
    memory.rows[position] = mine[n];
    memory.weights[position] = feature.weights == nullptr ? 1.0f : feature.weights[i];
  }
  __syncwarp();
  if (Lane() < num_bags) {
    BagSums sums;
    for (int at = Lane() * length; at < (Lane() + 1) * length; ++at) {
      if (memory.rows[at] != kRowPadded) sums.Add(memory.weights[at]);
    }
    memory.scales[Lane()] = static_cast<double>(BagScale(feature.combiner, sums));
  }
  __syncwarp();
  if (table.layout.dim % 4 == 0) {
    PoolBags<4>(ring.Mine(), table, feature, first_bag, num_bags, memory);
  } else {
    PoolBags<1>(ring.Mine(), table, feature, first_bag, num_bags, memory);
  }
  rows.Count(feature, counts);
}

// Both kinds of bags.
template <class Rows>
void LaunchPool(const FeatureList& all, const TableView* views, const Rows& rows,
                cudaStream_t stream) {
  WithFeatures(all, GatherKind::kShortBags, [&](uint32_t blocks, const auto& some) {
    PoolShortBagsKernel<<<blocks, kThreads, 0, stream>>>(some, views, rows);
  });
  WithFeatures(all, GatherKind::kLongBags, [&](uint32_t blocks, const auto& some) {
    PoolLongBagsKernel<<<blocks, kThreads, 0, stream>>>(some, views, rows);
  });
}

}  // namespace dynemb
