// From row numbers to the rows that a call returns: copied, or pooled in bags. A
// warp works on 32 ids at once (copy) or on one bag (pool).
#pragma once

#include "core/pool.h"
#include "cuda/call_state.cuh"
#include "cuda/pieces.cuh"

namespace dynemb {

// Columns [column, column + VEC) of what a key without a row looks like.
template <int VEC>
__device__ Piece<VEC> MissingPiece(const TableView& table, Key key, int column) {
  Piece<VEC> piece = Piece<VEC>::Filled(table.missing_value);
  if (!table.missing_is_initial) return piece;
  const RowInitializer& init = table.initializer;
  const PhiloxBlock random =
      Philox4x32({{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32),
                   static_cast<uint32_t>(column / 4), 0u}},
                 static_cast<uint32_t>(init.stream), static_cast<uint32_t>(init.stream >> 32));
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    if (VEC == 4) piece.value[word % VEC] = InitialValue(init, random.word[word]);
    if (VEC == 1 && column % 4 == word) piece.value[0] = InitialValue(init, random.word[word]);
  }
  return piece;
}

// Ids of a warp by what became of them.
struct IdCounts {
  unsigned found = 0, padded = 0, missing = 0;

  // One id a lane; all lanes call it.
  __device__ void Add(int64_t row, bool is_id) {
    const auto count = [](bool one) {
      return static_cast<unsigned>(__popc(__ballot_sync(kFullWarp, one)));
    };
    found += count(is_id && row >= 0);
    padded += count(is_id && row == kRowPadded);
    missing += count(is_id && row == kRowRefused);
  }
};

// Rows in flight of a warp.
inline constexpr int kGatherStages = 8;
using GatherRing = Ring<kGatherStages, 1>;

// Writes what ids without a row look like: of the 32 from `first` those of the lanes in
// `absent`, one code a lane.
template <int VEC>
__device__ void WriteAbsent(const TableView& table, const FeatureParam& feature, int64_t first,
                            unsigned absent, int64_t row) {
  const int dim = table.layout.dim;
  while (absent != 0) {
    const int source = __ffs(static_cast<int>(absent)) - 1;
    absent &= absent - 1;
    const bool padded = __shfl_sync(kFullWarp, row, source) == kRowPadded;
    const int64_t i = first + source;
    const Key key = LoadKeyOnDevice(feature, i);
    for (int column = Lane() * VEC; column < dim; column += 32 * VEC) {
      const Piece<VEC> piece =
          padded ? Piece<VEC>::Filled(0.0f) : MissingPiece<VEC>(table, key, column);
      piece.StoreStreaming(feature.rows_out + i * dim + column);
    }
  }
}

// Copies the rows of 32 ids from `first`, one row number a lane; negative: none.
template <int VEC>
__device__ void CopyRows(const GatherRing& ring, const TableView& table,
                         const FeatureParam& feature, int64_t first, int64_t row) {
  const int dim = table.layout.dim;
  const Teams<VEC> teams(LanesOfRow(dim, 1));
  for (int start = 0; start < dim; start += teams.columns()) {
    const int column = start + teams.column();
    const bool active = column < dim;
    float* out = feature.rows_out + (first + teams.team) * dim + column;
    for (int turn = 0; turn < teams.lanes + ring.kAhead; ++turn) {
      const int64_t from = __shfl_sync(kFullWarp, row, turn * teams.count() + teams.team);
      if (turn < teams.lanes && active && from >= 0) {
        ring.Copy<VEC>(turn, 0, table.Row(from) + column);
      }
      ring.Turn();
      const int done = turn - ring.kAhead;
      if (done < 0) continue;
      const int64_t of = __shfl_sync(kFullWarp, row, done * teams.count() + teams.team);
      if (active && of >= 0) ring.Read<VEC>(done, 0).StoreStreaming(out);
      out += teams.count() * dim;
    }
  }
}

// CopyRows of `row`, then WriteAbsent of `code`.
__device__ inline void WriteRows(const GatherRing& ring, const TableView& table,
                                 const FeatureParam& feature, int64_t first, int64_t row,
                                 unsigned absent, int64_t code) {
  if (table.layout.dim % 4 == 0) {
    CopyRows<4>(ring, table, feature, first, row);
    WriteAbsent<4>(table, feature, first, absent, code);
  } else {
    CopyRows<1>(ring, table, feature, first, row);
    WriteAbsent<1>(table, feature, first, absent, code);
  }
}

// Outputs of a call that does not run.
__device__ inline void PoisonRows(const TableView& table, const FeatureParam& feature,
                                  int64_t first, int64_t count) {
  const int64_t dim = table.layout.dim;
  for (int64_t j = Lane(); j < count * dim; j += 32) {
    feature.rows_out[first * dim + j] = __int_as_float(0x7FC00000);
  }
}

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

// The copied or the pooled features of a list; returns their blocks.
inline uint32_t LayOutGather(const FeatureList& all, bool pooled, FeatureList* some) {
  const int64_t per_block = pooled ? kThreads / 32 : kThreads;
  uint32_t blocks = 0;
  some->count = 0;
  for (int f = 0; f < all.count; ++f) {
    if ((all.features[f].combiner != Combiner::kNone) != pooled) continue;
    FeatureParam& feature = some->features[some->count++];
    feature = all.features[f];
    feature.first_block = blocks;
    blocks += static_cast<uint32_t>((feature.num_outputs + per_block - 1) / per_block);
  }
  return blocks;
}

// Calls launch(blocks, list) with the copied (or the pooled) features, if there are any.
template <class Launch>
void WithFeatures(const FeatureList& all, bool pooled, const Launch& launch) {
  FeatureList list;
  const uint32_t blocks = LayOutGather(all, pooled, &list);
  if (blocks == 0) return;
  WithFewFeatures(list, [&](const auto& some) { launch(blocks, some); });
}

}  // namespace dynemb
