// From row numbers to the rows that a call returns: copied, or pooled in bags. A
// warp works on 32 ids at once (copy) or on one bag (pool); where the numbers come
// from is a parameter.
#pragma once

#include "core/pool.h"
#include "cuda/call_state.cuh"

namespace dynemb {

// VEC floats of one row, by the lanes of a warp: 16 bytes a lane where rows of the
// output are aligned, else 4.
template <int VEC>
struct Piece {
  float value[VEC];

  __device__ static Piece Load(const float* from) {
    Piece piece;
    if constexpr (VEC == 4) {
      const float4 four = *reinterpret_cast<const float4*>(from);
      piece.value[0] = four.x;
      piece.value[1] = four.y;
      piece.value[2] = four.z;
      piece.value[3] = four.w;
    } else {
      piece.value[0] = *from;
    }
    return piece;
  }
  __device__ void Store(float* to) const {
    if constexpr (VEC == 4) {
      // Written once and not read here again: keep the cache for rows.
      __stcs(reinterpret_cast<float4*>(to), make_float4(value[0], value[1], value[2], value[3]));
    } else {
      *to = value[0];
    }
  }
  __device__ void StoreCached(float* to) const {
    if constexpr (VEC == 4) {
      *reinterpret_cast<float4*>(to) = make_float4(value[0], value[1], value[2], value[3]);
    } else {
      *to = value[0];
    }
  }
  __device__ static Piece Filled(float x) {
    Piece piece;
    for (float& v : piece.value) v = x;
    return piece;
  }
};

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

template <int VEC>
__device__ Piece<VEC> RowPiece(const TableView& table, const FeatureParam& feature, int64_t i,
                               int64_t row, int column) {
  if (row >= 0) return Piece<VEC>::Load(table.Row(row) + column);
  if (row == kRowPadded) return Piece<VEC>::Filled(0.0f);
  return MissingPiece<VEC>(table, LoadKeyOnDevice(feature, i), column);
}

// Row numbers of a training lookup; also writes the id's position among the
// unique rows.
struct TrainRows {
  LookupScratch scratch;

  __device__ bool Poisoned() const { return !Runs(*scratch.group); }
  __device__ int64_t Resolve(const TableView& table, const FeatureParam& feature, int64_t i) const {
    const int64_t row = ResolvedRow(scratch, feature.first_id + i);
    feature.index_out[i] = row >= 0 ? static_cast<int32_t>(table.stamps[row] & 0xFFFFFFFFu)
                                    : static_cast<int32_t>(row);
    return row;
  }
  __device__ void Poison(const FeatureParam& feature, int64_t i) const {
    feature.index_out[i] = kRefused;
  }
  __device__ void Count(const FeatureParam& feature, unsigned, unsigned, unsigned refused) const {
    if (refused != 0) {
      atomicAdd(&scratch.counts[feature.call_table].refused,
                static_cast<unsigned long long>(refused));
    }
  }
};

// Row numbers of a find, straight from the index.
struct FindRows {
  TableState* states;

  __device__ bool Poisoned() const { return false; }
  __device__ int64_t Resolve(const TableView& table, const FeatureParam& feature, int64_t i) const {
    if (!IsMeant(feature, i)) return kRowPadded;
    const Key key = LoadKeyOnDevice(feature, i);
    const int64_t row = FindRowOnDevice(table.index, HashKey(key), key);
    return row >= 0 ? row : kRowRefused;
  }
  __device__ void Poison(const FeatureParam&, int64_t) const {}
  __device__ void Count(const FeatureParam& feature, unsigned found, unsigned padded,
                        unsigned missing) const {
    TableCounters& counters = states[feature.table].counters;
    auto add = [](int64_t& counter, unsigned n) {
      if (n != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&counter), n);
    };
    add(counters.found, found);
    add(counters.padded, padded);
    add(counters.missing, missing);
  }
};

// Adds up per block before it touches global counters: they are few and hot.
template <class Rows>
__device__ void CountBlock(const Rows& rows, const FeatureParam& feature, unsigned found,
                           unsigned padded, unsigned missing) {
  __shared__ unsigned sums[3];
  if (threadIdx.x < 3) sums[threadIdx.x] = 0;
  __syncthreads();
  if (Lane() == 0) {
    atomicAdd(&sums[0], found);
    atomicAdd(&sums[1], padded);
    atomicAdd(&sums[2], missing);
  }
  __syncthreads();
  if (threadIdx.x == 0) rows.Count(feature, sums[0], sums[1], sums[2]);
}

// Copies the rows of ids [first, first + 32), one row number a lane. LANES lanes
// share a row, so narrow rows still fill the warp.
template <int VEC>
__device__ void CopyRows(const TableView& table, const FeatureParam& feature, int64_t first,
                         int64_t row, int lanes) {
  constexpr int kUnroll = 4;
  const int dim = table.layout.dim;
  const int rows_at_once = 32 / lanes;
  const int sub = Lane() / lanes, column0 = (Lane() % lanes) * VEC;
  for (int start = 0; start < dim; start += lanes * VEC) {
    const int column = start + column0;
    const bool active = column < dim;
    for (int r = 0; r < 32; r += rows_at_once * kUnroll) {
      Piece<VEC> pieces[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int source = r + u * rows_at_once + sub;
        const int64_t from = __shfl_sync(kFullWarp, row, source & 31);
        if (active && source < 32 && first + source < feature.num_ids) {
          pieces[u] = RowPiece<VEC>(table, feature, first + source, from, column);
        }
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int source = r + u * rows_at_once + sub;
        if (active && source < 32 && first + source < feature.num_ids) {
          pieces[u].Store(feature.rows_out + (first + source) * dim + column);
        }
      }
    }
  }
}

// Pools the bag of output `bag`; returns what Resolve found, per warp.
template <int VEC, class Rows>
__device__ void PoolBag(const Rows& rows, const TableView& table, const FeatureParam& feature,
                        int64_t bag, unsigned* found, unsigned* padded, unsigned* missing) {
  const int dim = table.layout.dim;
  for (int start = 0; start < dim; start += 32 * VEC) {
    const int column = start + Lane() * VEC;
    // A float sum of 32 rows at a time, those in double: a bag may hold a million ids.
    double total[VEC] = {};
    BagSums sums;
    for (int64_t base = 0; base < feature.bag_length; base += 32) {
      const int64_t position = base + Lane();
      const bool in_bag = position < feature.bag_length;
      const int64_t i = bag * feature.bag_length + position;
      int64_t row = kRowPadded;
      float weight = 0.0f;
      if (in_bag) {
        row = rows.Resolve(table, feature, i);
        weight = feature.weights == nullptr ? 1.0f : feature.weights[i];
      }
      if (start == 0) {
        *found += static_cast<unsigned>(__popc(__ballot_sync(kFullWarp, row >= 0)));
        *padded +=
            static_cast<unsigned>(__popc(__ballot_sync(kFullWarp, in_bag && row == kRowPadded)));
        *missing += static_cast<unsigned>(__popc(__ballot_sync(kFullWarp, row == kRowRefused)));
      }
      const int length = static_cast<int>(min(int64_t{32}, feature.bag_length - base));
      Piece<VEC> part = Piece<VEC>::Filled(0.0f);
      for (int j = 0; j < length; ++j) {
        const int64_t from = __shfl_sync(kFullWarp, row, j);
        const float w = __shfl_sync(kFullWarp, weight, j);
        if (from == kRowPadded) continue;
        sums.Add(w);
        if (column < dim) {
          const Piece<VEC> piece =
              RowPiece<VEC>(table, feature, bag * feature.bag_length + base + j, from, column);
#pragma unroll
          for (int v = 0; v < VEC; ++v) part.value[v] += w * piece.value[v];
        }
      }
      for (int v = 0; v < VEC; ++v) total[v] += static_cast<double>(part.value[v]);
    }
    const double scale = static_cast<double>(BagScale(feature.combiner, sums));
    Piece<VEC> pooled;
    for (int v = 0; v < VEC; ++v) pooled.value[v] = static_cast<float>(total[v] * scale);
    if (column < dim) pooled.Store(feature.rows_out + bag * dim + column);
  }
}

// Outputs of a block: kThreads ids where they are copied, kThreads / 32 bags where
// they are pooled.
template <class List, class Rows>
__global__ void __launch_bounds__(kThreads, 4)
    GatherKernel(const __grid_constant__ List list, const TableView* views, Rows rows) {
  const FeatureParam& feature = FeatureOfBlock(list);
  const TableView& table = views[feature.table];
  const int dim = table.layout.dim;
  const int64_t block = blockIdx.x - feature.first_block;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const bool poisoned = rows.Poisoned();
  const bool wide = dim % 4 == 0;
  unsigned found = 0, padded = 0, missing = 0;

  if (feature.combiner == Combiner::kNone) {
    const int64_t first = block * kThreads + warp * 32;
    const int64_t i = first + Lane();
    int64_t row = kRowPadded;
    if (i < feature.num_ids) {
      if (poisoned) {
        rows.Poison(feature, i);
      } else {
        row = rows.Resolve(table, feature, i);
      }
    }
    if (poisoned) {
      for (int64_t j = first * dim + Lane(); j < min(first + 32, feature.num_ids) * dim; j += 32) {
        feature.rows_out[j] = __int_as_float(0x7FC00000);
      }
      return;
    }
    found = static_cast<unsigned>(__popc(__ballot_sync(kFullWarp, row >= 0)));
    padded = static_cast<unsigned>(
        __popc(__ballot_sync(kFullWarp, i < feature.num_ids && row == kRowPadded)));
    missing = static_cast<unsigned>(__popc(__ballot_sync(kFullWarp, row == kRowRefused)));
    if (wide) {
      int lanes = 1;
      while (lanes < 32 && lanes * 4 < dim) lanes *= 2;
      CopyRows<4>(table, feature, first, row, lanes);
    } else {
      CopyRows<1>(table, feature, first, row, 32);
    }
  } else {
    const int64_t bag = block * (kThreads / 32) + warp;
    if (bag < feature.num_outputs) {
      if (poisoned) {
        for (int64_t j = Lane(); j < feature.bag_length; j += 32) {
          rows.Poison(feature, bag * feature.bag_length + j);
        }
        for (int j = Lane(); j < dim; j += 32) {
          feature.rows_out[bag * dim + j] = __int_as_float(0x7FC00000);
        }
      } else if (wide) {
        PoolBag<4>(rows, table, feature, bag, &found, &padded, &missing);
      } else {
        PoolBag<1>(rows, table, feature, bag, &found, &padded, &missing);
      }
    }
    if (poisoned) return;
  }
  CountBlock(rows, feature, found, padded, missing);
}

// Gives the features of a gather their blocks; returns how many there are.
inline uint32_t LayOutGather(FeatureList* list) {
  uint32_t blocks = 0;
  for (int f = 0; f < list->count; ++f) {
    FeatureParam& feature = list->features[f];
    feature.first_block = blocks;
    const int64_t per_block = feature.combiner == Combiner::kNone ? kThreads : kThreads / 32;
    blocks += static_cast<uint32_t>((feature.num_outputs + per_block - 1) / per_block);
  }
  return blocks;
}

template <class Rows>
void LaunchGather(FeatureList list, const TableView* views, const Rows& rows, cudaStream_t stream) {
  const uint32_t blocks = LayOutGather(&list);
  if (blocks == 0) return;
  WithFew(list, CallTables{}, [&](const auto& some, const auto&) {
    GatherKernel<<<blocks, kThreads, 0, stream>>>(some, views, rows);
  });
}

}  // namespace dynemb
