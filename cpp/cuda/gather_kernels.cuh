// From row numbers to the rows that a call returns: copied, or pooled in bags. A
// warp works on 32 ids at once (copy) or on one bag (pool); where the numbers come
// from is a parameter.
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
  for (int i = 0; i < VEC; ++i) {
    const PhiloxBlock random =
        Philox4x32({{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32),
                     static_cast<uint32_t>((column + i) / 4), 0u}},
                   static_cast<uint32_t>(init.stream), static_cast<uint32_t>(init.stream >> 32));
    piece.value[i] = InitialValue(init, random.word[(column + i) % 4]);
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

// Row numbers of a training lookup; also writes the id's position among the
// unique rows.
struct TrainRows {
  LookupScratch scratch;

  __device__ bool Poisoned() const { return !Runs(*scratch.group); }
  // What the id has before the insertions: loaded ahead of all decisions.
  __device__ int64_t Peek(const FeatureParam& feature, int64_t i) const {
    return scratch.rows[feature.first_id + i];
  }
  __device__ int64_t Resolve(const TableView&, const FeatureParam&, int64_t, int64_t peeked) const {
    return ResolvedRow(scratch, peeked);
  }
  // The id's index, to be written once the rows are on their way.
  __device__ int32_t Index(const TableView& table, int64_t row) const {
    return row >= 0 ? static_cast<int32_t>(table.stamps[row] & 0xFFFFFFFFu)
                    : static_cast<int32_t>(row);
  }
  __device__ void WriteIndex(const FeatureParam& feature, int64_t i, int32_t index) const {
    feature.index_out[i] = index;
  }
  __device__ void Poison(const FeatureParam& feature, int64_t i) const {
    feature.index_out[i] = kRefused;
  }
  __device__ void Count(const FeatureParam& feature, const IdCounts& counts) const {
    if (counts.missing != 0 && Lane() == 0) {
      atomicAdd(&scratch.counts[feature.call_table].refused,
                static_cast<unsigned long long>(counts.missing));
    }
  }
};

// Row numbers of a find, straight from the index.
struct FindRows {
  TableState* states;

  __device__ bool Poisoned() const { return false; }
  __device__ int64_t Peek(const FeatureParam& feature, int64_t i) const {
    return static_cast<int64_t>(LoadKeyOnDevice(feature, i));
  }
  __device__ int64_t Resolve(const TableView& table, const FeatureParam& feature, int64_t i,
                             int64_t peeked) const {
    if (!IsMeant(feature, i)) return kRowPadded;
    const Key key = static_cast<Key>(peeked);
    const int64_t row = FindRowOnDevice(table.index, HashKey(key), key);
    return row >= 0 ? row : kRowRefused;
  }
  __device__ int32_t Index(const TableView&, int64_t) const { return 0; }
  __device__ void WriteIndex(const FeatureParam&, int64_t, int32_t) const {}
  __device__ void Poison(const FeatureParam&, int64_t) const {}
  // Adds up per block, by its last warp: the counters are few and hot.
  __device__ void Count(const FeatureParam& feature, const IdCounts& counts) const {
    __shared__ unsigned sums[3], warps;
    if (threadIdx.x < 3) sums[threadIdx.x] = 0;
    if (threadIdx.x == 3) warps = 0;
    __syncthreads();
    if (Lane() != 0) return;
    atomicAdd(&sums[0], counts.found);
    atomicAdd(&sums[1], counts.padded);
    atomicAdd(&sums[2], counts.missing);
    __threadfence_block();
    if (atomicAdd(&warps, 1u) + 1 != blockDim.x / 32) return;
    __threadfence_block();
    TableCounters& counters = states[feature.table].counters;
    const auto add = [](int64_t& counter, unsigned* sum) {
      const unsigned n = atomicAdd(sum, 0u);
      if (n != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&counter), n);
    };
    add(counters.found, &sums[0]);
    add(counters.padded, &sums[1]);
    add(counters.missing, &sums[2]);
  }
};

// Rows in flight of a warp.
inline constexpr int kGatherStages = 8;
using GatherRing = Ring<kGatherStages, 1>;

// Writes what ids [first, first + count) without a row look like.
template <int VEC>
__device__ void WriteAbsent(const TableView& table, const FeatureParam& feature, int64_t first,
                            int count, int64_t row) {
  const int dim = table.layout.dim;
  unsigned absent = __ballot_sync(kFullWarp, row < 0 && Lane() < count);
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

// Copies the rows of ids [first, first + count), one row number a lane; `lanes` share a
// row, so narrow rows still fill the warp.
template <int VEC>
__device__ void CopyRows(const GatherRing& ring, const TableView& table,
                         const FeatureParam& feature, int64_t first, int count, int64_t row) {
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
  WriteAbsent<VEC>(table, feature, first, count, row);
}

// Where features are copied: kThreads ids a block.
template <class List, class Rows>
__global__ void __launch_bounds__(kThreads, 5)
    CopyKernel(const __grid_constant__ List list, const TableView* views, Rows rows) {
  __shared__ RingMemory<kThreads, kGatherStages, 1> memory;
  const FeatureParam& feature = FeatureOfBlock(list);
  const TableView& table = views[feature.table];
  const int64_t first =
      int64_t{blockIdx.x - feature.first_block} * kThreads + threadIdx.x / 32 * 32;
  const int count = static_cast<int>(max(int64_t{0}, min(int64_t{32}, feature.num_ids - first)));
  const int64_t i = first + Lane();
  const int64_t peeked = Lane() < count ? rows.Peek(feature, i) : 0;
  if (rows.Poisoned()) {
    if (Lane() < count) rows.Poison(feature, i);
    for (int64_t j = Lane(); j < int64_t{count} * table.layout.dim; j += 32) {
      feature.rows_out[first * table.layout.dim + j] = __int_as_float(0x7FC00000);
    }
    return;
  }
  const int64_t row =
      Lane() < count ? rows.Resolve(table, feature, i, peeked) : int64_t{kRowPadded};
  const int32_t index = rows.Index(table, row);
  IdCounts counts;
  counts.Add(row, Lane() < count);
  rows.Count(feature, counts);
  if (table.layout.dim % 4 == 0) {
    CopyRows<4>(memory.Mine(), table, feature, first, count, row);
  } else {
    CopyRows<1>(memory.Mine(), table, feature, first, count, row);
  }
  if (Lane() < count) rows.WriteIndex(feature, i, index);
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
        row = rows.Resolve(table, feature, i, rows.Peek(feature, i));
        if (start == 0) rows.WriteIndex(feature, i, rows.Index(table, row));
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
    for (int j = Lane(); j < table.layout.dim; j += 32) {
      feature.rows_out[bag * table.layout.dim + j] = __int_as_float(0x7FC00000);
    }
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

template <class Rows>
void LaunchGather(const FeatureList& all, const TableView* views, const Rows& rows,
                  cudaStream_t stream) {
  for (const bool pooled : {false, true}) {
    FeatureList list;
    const uint32_t blocks = LayOutGather(all, pooled, &list);
    if (blocks == 0) continue;
    WithFew(list, CallTables{}, [&](const auto& some, const auto&) {
      if (pooled) {
        PoolKernel<<<blocks, kThreads, 0, stream>>>(some, views, rows);
      } else {
        CopyKernel<<<blocks, kThreads, 0, stream>>>(some, views, rows);
      }
    });
  }
}

}  // namespace dynemb
