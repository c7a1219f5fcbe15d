// Rows pooled in bags. Where row numbers come from is a parameter: of a find or of a
// training lookup.
#pragma once

#include "core/pool.h"
#include "cuda/gather_kernels.cuh"
#include "table/table_config.h"

namespace dynemb {

inline constexpr int kPoolWarps = kThreads / 32;

// Bags of so many ids that a warp pools: short ones one behind the other, as many as have an
// id a lane, so that copies of the next bags are on their way while one is summed.
inline int32_t BagsOfWarp(int64_t bag_length, const TableConfig& config) {
  const int most =
      config.row_type == RowType::kFloat32 ? FloatElements::kColumns : Elements16::kColumns;
  const int64_t teams = 32 / LanesOfRow(config.dim, most, 1);
  const int64_t bags = bag_length == 0 ? 0 : 32 / bag_length;
  return bags > 1 && bags >= teams ? static_cast<int32_t>(bags) : 1;
}

// Whether the weights of a bag have to be added up.
__device__ inline bool NeedsSums(const FeatureParam& feature) {
  return feature.weights != nullptr && feature.combiner != Combiner::kSum;
}

__device__ inline BagSums SumsOfEqual(int64_t count) {
  const double n = static_cast<double>(count);
  return {n, n, n};
}

__device__ inline void SumOverWarp(BagSums* sums) {
  sums->weight = WarpSum(sums->weight);
  sums->absolute_weight = WarpSum(sums->absolute_weight);
  sums->squared_weight = WarpSum(sums->squared_weight);
}

// Bags [first_bag, first_bag + bags) of one warp, whose ids are no more than its lanes. Every
// team sums bags of its own.
template <class Elements, int VEC, class Rows>
__device__ void PoolShortBags(const GatherRing& ring, const Rows& rows, const TableView& table,
                              const FeatureParam& feature, int64_t first_bag, int bags,
                              IdCounts* counts) {
  const int dim = table.layout.dim, length = static_cast<int>(feature.bag_length);
  const Teams<VEC> teams(LanesOfRow(dim, VEC, 1));
  const int64_t first_id = first_bag * length;
  const bool is_id = Lane() < bags * length;
  int64_t row = kRowPadded;
  float weight = 1.0f;
  if (is_id) {
    row = rows.Resolve(table, feature, first_id + Lane());
    rows.Number(table, feature, first_id + Lane(), row);
    if (feature.weights != nullptr) weight = feature.weights[first_id + Lane()];
  }
  counts->Add(row, is_id);
  const unsigned meant = __ballot_sync(kFullWarp, row != kRowPadded);
  const unsigned missing = __ballot_sync(kFullWarp, row == kRowRefused);
  const unsigned of_bag = (1u << length) - 1;
  // Of the bag whose first id is that of lane `from`; all lanes call it.
  const auto sums_of = [&](int from) {
    if (!NeedsSums(feature)) return SumsOfEqual(__popc(meant >> (from & 31) & of_bag));
    BagSums sums;
    for (int k = 0; k < length; ++k) {
      const float its = __shfl_sync(kFullWarp, weight, (from + k) & 31);
      if ((meant >> ((from + k) & 31) & 1u) != 0) sums.Add(its);
    }
    return sums;
  };
  const int turns = (bags + teams.count() - 1) / teams.count() * length;
  const int next_bag = (teams.count() - 1) * length + 1;  // from the last id of a team's bag
  const int end = bags * length;
  for (int start = 0; start < dim; start += teams.columns()) {
    const int column = start + teams.column();
    const bool active = column < dim;
    Piece<VEC> part = Piece<VEC>::Filled(0.0f);
    // Lanes of the ids that are copied and added, and how many of the bag are before them.
    int copied = teams.team * length, copied_place = 0, added = copied, added_place = 0;
    for (int turn = 0; turn < turns + ring.kAhead; ++turn) {
      if (turn < turns) {
        const int64_t from = __shfl_sync(kFullWarp, row, copied & 31);
        if (active && copied < end && from >= 0) {
          Elements::template CopyRow<VEC>(ring, turn, table.Row(from), column);
        }
        const bool is_last = ++copied_place == length;
        copied += is_last ? next_bag : 1;
        if (is_last) copied_place = 0;
      }
      ring.Turn();
      const int done = turn - ring.kAhead;
      if (done < 0) continue;
      const int64_t of = __shfl_sync(kFullWarp, row, added & 31);
      const float its = __shfl_sync(kFullWarp, weight, added & 31);
      if (active && added < end && of >= 0) {
        part.AddScaled(its, Elements::template ReadRow<VEC>(ring, table.layout, done));
      }
      if (++added_place < length) {
        ++added;
        continue;
      }
      const int first = added + 1 - length;
      for (int k = 0; missing != 0 && k < length; ++k) {
        const float w = __shfl_sync(kFullWarp, weight, (first + k) & 31);
        if (!active || added >= end || (missing >> (first + k) & 1u) == 0) continue;
        const Key key = LoadKeyOnDevice(feature, first_id + first + k);
        part.AddScaled(w, MissingPiece<Elements, VEC>(table, key, column));
      }
      const float scale = BagScale(feature.combiner, sums_of(first));
      if (active && added < end) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) part.value[v] *= scale;
        const int64_t bag = first_bag + first / length;
        typename Elements::Output(feature, bag * dim + column).template Store<VEC>(part);
      }
      part = Piece<VEC>::Filled(0.0f);
      added_place = 0;
      added += next_bag;
    }
  }
}

// A bag of any length, summed by one warp, whose teams share its ids. Its ids' counts are
// added up by all lanes alike.
template <class Elements, int VEC, class Rows>
__device__ void PoolBag(const GatherRing& ring, const Rows& rows, const TableView& table,
                        const FeatureParam& feature, int64_t bag, IdCounts* counts) {
  const int dim = table.layout.dim;
  const Teams<VEC> teams(LanesOfRow(dim, VEC, 1));
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
          Elements::template CopyRow<VEC>(ring, turn, table.Row(from), column);
        }
        ring.Turn();
        const int done = turn - ring.kAhead;
        if (done < 0) continue;
        const int source = done * teams.count() + teams.team;
        const int64_t of = __shfl_sync(kFullWarp, row, source);
        const float w = __shfl_sync(kFullWarp, weight, source);
        if (active && of >= 0) {
          part.AddScaled(w, Elements::template ReadRow<VEC>(ring, table.layout, done));
        }
      }
      teams.Combine(&part);
      unsigned missing = __ballot_sync(kFullWarp, row == kRowRefused);
      while (missing != 0) {
        const int source = __ffs(static_cast<int>(missing)) - 1;
        missing &= missing - 1;
        const Key key = LoadKeyOnDevice(feature, i - Lane() + source);
        const float w = __shfl_sync(kFullWarp, weight, source);
        if (active) part.AddScaled(w, MissingPiece<Elements, VEC>(table, key, column));
      }
      for (int v = 0; v < VEC; ++v) total[v] += static_cast<double>(part.value[v]);
    }
    SumOverWarp(&sums);
    const double scale = static_cast<double>(BagScale(feature.combiner, sums));
    Piece<VEC> pooled;
    for (int v = 0; v < VEC; ++v) pooled.value[v] = static_cast<float>(total[v] * scale);
    if (active && teams.team == 0) {
      typename Elements::Output(feature, bag * dim + column).template Store<VEC>(pooled);
    }
  }
}

// Where features are pooled: some bags a warp.
template <class Elements, class List, class Rows>
__global__ void __launch_bounds__(kThreads, Elements::kPoolBlocks)
    PoolKernel(const __grid_constant__ List list, const TableView* views, Rows rows) {
  __shared__ RingMemory<kThreads, kGatherStages, 1> memory;
  const FeatureParam& feature = FeatureOfBlock(list);
  const TableView& table = views[feature.table];
  const int64_t warp = int64_t{blockIdx.x - feature.first_block} * kPoolWarps + threadIdx.x / 32;
  const int64_t first_bag = warp * feature.bags_of_warp;
  const int bags = static_cast<int>(
      max(int64_t{0}, min(int64_t{feature.bags_of_warp}, feature.num_outputs - first_bag)));
  if (rows.Poisoned()) {
    for (int64_t j = Lane(); j < bags * feature.bag_length; j += 32) {
      rows.Poison(feature, first_bag * feature.bag_length + j);
    }
    PoisonRows<Elements>(table, feature, first_bag, bags);
    return;
  }
  IdCounts counts;
  if (bags > 0) {
    WithColumns<Elements>(table.layout.dim, [&]<int VEC>() {
      if (feature.bags_of_warp > 1) {
        PoolShortBags<Elements, VEC>(memory.Mine(), rows, table, feature, first_bag, bags, &counts);
      } else {
        PoolBag<Elements, VEC>(memory.Mine(), rows, table, feature, first_bag, &counts);
      }
    });
  }
  rows.Count(feature, counts);
}

template <class Rows>
void LaunchPool(const FeatureList& all, const TableView* views, const Rows& rows,
                cudaStream_t stream) {
  const auto warps = [](const FeatureParam& feature) {
    return (feature.num_outputs + feature.bags_of_warp - 1) / feature.bags_of_warp;
  };
  WithFeatures(all, GatherKind::kPooled, kPoolWarps, warps,
               [&]<class Elements>(uint32_t blocks, const auto& some) {
                 PoolKernel<Elements><<<blocks, kThreads, 0, stream>>>(some, views, rows);
               });
}

}  // namespace dynemb
