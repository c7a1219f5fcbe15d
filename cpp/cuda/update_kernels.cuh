// Sorted gradients, summed per row, then one step of the optimizer: a warp per row.
// Rows with very many ids are cut into pieces, a warp each; the last one of a row's
// pieces takes the step.
#pragma once  // included by update.cu alone

#include "core/optimizer/dispatch.h"
#include "cuda/sort_kernels.cuh"

namespace dynemb {

// Gradient of one id: where its row of the caller's gradient is, and its weight.
struct Contribution {
  const float* grad;
  float scale;
};

template <class List>
__device__ Contribution ContributionOf(const List& list, uint32_t id) {
  int low = 0, high = list.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (list.features[middle].first_id <= id) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const GradientParam& feature = list.features[low];
  const int64_t i = id - feature.first_id;
  if (feature.bag_scales == nullptr) return {feature.grads + i * feature.dim, 1.0f};
  const int64_t bag = i / feature.bag_length;
  const float weight = feature.weights == nullptr ? 1.0f : feature.weights[i];
  return {feature.grads + bag * feature.dim, weight * feature.bag_scales[bag]};
}

// Columns [column, column + VEC) of one row take the step.
template <class Rule, int VEC, class Terms>
__device__ void StepColumns(const Rule& rule, const Terms& terms, const TableView& table,
                            float* row, int column, const Piece<VEC>& grad) {
  Piece<VEC> w = Piece<VEC>::Load(row + column);
  Piece<VEC> s0 = Piece<VEC>::Filled(0.0f), s1 = s0;
  float* at0 = row + table.layout.VectorOffset(0) + column;
  float* at1 = row + table.layout.VectorOffset(1) + column;
  if constexpr (Rule::kVectors > 0) s0 = Piece<VEC>::Load(at0);
  if constexpr (Rule::kVectors > 1) s1 = Piece<VEC>::Load(at1);
#pragma unroll
  for (int v = 0; v < VEC; ++v) {
    rule.Column(terms, grad.value[v], w.value[v], s0.value[v], s1.value[v]);
  }
  auto store = [](const Piece<VEC>& piece, float* to) {
    if constexpr (VEC == 4) {
      *reinterpret_cast<float4*>(to) =
          make_float4(piece.value[0], piece.value[1], piece.value[2], piece.value[3]);
    } else {
      *to = piece.value[0];
    }
  };
  store(w, row + column);
  if constexpr (Rule::kVectors > 0) store(s0, at0);
  if constexpr (Rule::kVectors > 1) store(s1, at1);
}

// The row's terms, once, for all lanes of a warp; per-row numbers advance.
template <class Rule>
__device__ auto WarpTerms(const Rule& rule, const TableView& table, float* row) {
  float scalars[Rule::kScalars > 0 ? Rule::kScalars : 1] = {};
  float* at = row + table.layout.ScalarOffset();
  for (int i = 0; i < Rule::kScalars; ++i) scalars[i] = at[i];
  const auto terms = rule.Row(scalars);
  __syncwarp();
  if (Lane() == 0) {
    for (int i = 0; i < Rule::kScalars; ++i) at[i] = scalars[i];
  }
  return terms;
}

// Columns [column, column + VEC) of the gradients of sorted ids [begin, begin +
// count), summed by one warp; lanes fetch 32 ids' places at once.
template <int VEC, class List>
__device__ Piece<VEC> SumByWarp(const List& list, const UpdateScratch& scratch, uint32_t begin,
                                uint32_t count, int column, int dim) {
  constexpr uint32_t kUnroll = 4;
  Piece<VEC> sum = Piece<VEC>::Filled(0.0f);
  for (uint32_t base = 0; base < count; base += 32) {
    const uint32_t length = min(32u, count - base);
    const uint32_t lane = static_cast<uint32_t>(Lane());
    Contribution mine{nullptr, 0.0f};
    if (lane < length) mine = ContributionOf(list, scratch.sorted[begin + base + lane]);
    for (uint32_t j = 0; j < length; j += kUnroll) {
      Piece<VEC> pieces[kUnroll];
      float scales[kUnroll];
#pragma unroll
      for (uint32_t u = 0; u < kUnroll; ++u) {
        const int from = static_cast<int>(j + u) & 31;
        const float* grad = reinterpret_cast<const float*>(
            __shfl_sync(kFullWarp, reinterpret_cast<unsigned long long>(mine.grad), from));
        scales[u] = __shfl_sync(kFullWarp, mine.scale, from);
        pieces[u] = Piece<VEC>::Filled(0.0f);
        if (j + u < length && column < dim) pieces[u] = Piece<VEC>::Load(grad + column);
      }
#pragma unroll
      for (uint32_t u = 0; u < kUnroll; ++u) {
        if (j + u >= length) continue;
#pragma unroll
        for (int v = 0; v < VEC; ++v) sum.value[v] += scales[u] * pieces[u].value[v];
      }
    }
  }
  return sum;
}

// One warp, one row: sums its ids' gradients and takes the step.
template <class Rule, int VEC, class List>
__device__ void UpdateRowByWarp(const Rule& rule, const List& list, const UpdateScratch& scratch,
                                const TableView& table, int64_t row, uint32_t begin,
                                uint32_t count) {
  float* values = table.Row(row);
  const auto terms = WarpTerms(rule, table, values);
  const int dim = table.layout.dim;
  for (int start = 0; start < dim; start += 32 * VEC) {
    const int column = start + Lane() * VEC;
    const Piece<VEC> sum = SumByWarp<VEC>(list, scratch, begin, count, column, dim);
    if (column < dim) StepColumns(rule, terms, table, values, column, sum);
  }
}

template <int VEC>
__device__ void AddToSums(float* sums, const Piece<VEC>& piece) {
#if __CUDA_ARCH__ >= 900
  if constexpr (VEC == 4) {
    atomicAdd(reinterpret_cast<float4*>(sums),
              make_float4(piece.value[0], piece.value[1], piece.value[2], piece.value[3]));
  } else {
    atomicAdd(sums, piece.value[0]);
  }
#else
  for (int v = 0; v < VEC; ++v) atomicAdd(sums + v, piece.value[v]);
#endif
}

// One warp, one piece of a hot row; who finishes the row's last piece takes its step.
template <class Rule, int VEC, class List>
__device__ void UpdateHotByWarp(const Rule& rule, const List& list, const UpdateScratch& scratch,
                                const TableView& table, int64_t row, const HotPiece& piece) {
  const int dim = table.layout.dim;
  float* sums = scratch.hot_sums + piece.hot * scratch.hot_stride;
  for (int start = 0; start < dim; start += 32 * VEC) {
    const int column = start + Lane() * VEC;
    const Piece<VEC> sum = SumByWarp<VEC>(list, scratch, static_cast<uint32_t>(piece.begin),
                                          static_cast<uint32_t>(piece.count), column, dim);
    if (column < dim) AddToSums<VEC>(sums + column, sum);
  }
  __threadfence();
  __syncwarp();
  uint32_t left = 0;
  if (Lane() == 0) left = atomicSub(&scratch.hot_left[piece.hot], 1u);
  if (__shfl_sync(kFullWarp, left, 0) != 1) return;
  __threadfence();
  float* values = table.Row(row);
  const auto terms = WarpTerms(rule, table, values);
  for (int column = Lane() * VEC; column < dim; column += 32 * VEC) {
    Piece<VEC> sum;
    for (int v = 0; v < VEC; ++v) sum.value[v] = __ldcg(&sums[column + v]);
    StepColumns(rule, terms, table, values, column, sum);
  }
}

__device__ inline StepOperands OperandsOf(const UpdateScratch& scratch, int32_t table) {
  const int32_t step = *scratch.step;
  return {scratch.learning_rates[table], step < 0 ? scratch.group->steps : int64_t{step}};
}

// Lanes whose row has very many ids hand it on in pieces; the warp writes them.
__device__ inline void CutHotRows(const UpdateScratch& scratch, int64_t unique, uint32_t begin,
                                  uint32_t count) {
  unsigned hot_lanes = __ballot_sync(kFullWarp, count > kHot);
  while (hot_lanes != 0) {
    const int lane = __ffs(static_cast<int>(hot_lanes)) - 1;
    hot_lanes &= hot_lanes - 1;
    const uint32_t first = __shfl_sync(kFullWarp, begin, lane);
    const uint32_t ids = __shfl_sync(kFullWarp, count, lane);
    const uint32_t row = __shfl_sync(kFullWarp, static_cast<uint32_t>(unique), lane);
    const uint32_t pieces = (ids + kHot - 1) / kHot;
    uint32_t hot = 0, at = 0;
    if (Lane() == 0) {
      hot = atomicAdd(&scratch.hot_counts[1], 1u);
      at = atomicAdd(&scratch.hot_counts[0], pieces);
      scratch.hot_left[hot] = pieces;
    }
    hot = __shfl_sync(kFullWarp, hot, 0);
    at = __shfl_sync(kFullWarp, at, 0);
    for (uint32_t p = static_cast<uint32_t>(Lane()); p < pieces; p += 32) {
      scratch.pieces[at + p] = {row, static_cast<int32_t>(first + p * kHot),
                                static_cast<int32_t>(min(uint32_t{kHot}, ids - p * kHot)),
                                static_cast<int32_t>(hot)};
    }
  }
}

// A warp takes 32 neighbouring unique rows of one table and updates those that
// have ids; hot ones are handed on in pieces.
template <class Rule, class List, class Tables>
__global__ void __launch_bounds__(kThreads, 4)
    UpdateKernel(const __grid_constant__ List list, const __grid_constant__ Tables parts,
                 OptimizerKind kind, UpdateScratch scratch) {
  if (scratch.group->run == 0) return;
  const int64_t warps = int64_t{gridDim.x} * (kThreads / 32);
  const int64_t warp = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  for (int64_t base = warp * 32; base < scratch.num_uniques; base += warps * 32) {
    const UpdateTable& part = TableOfUnique(parts, base);
    if (part.kind != kind) continue;
    const TableView& table = scratch.tables[part.table];
    const Rule rule(scratch.optimizers[part.table], OperandsOf(scratch, part.table));
    const bool wide = table.layout.dim % 4 == 0;
    const int64_t local = base - part.first_unique + Lane();
    uint32_t begin = 0, count = 0;
    int64_t row = -1;
    if (local < part.capacity) {
      const int64_t unique = part.first_unique + local;
      begin = scratch.offsets[unique];
      count = scratch.counts[unique];
      if (count != 0) row = part.unique_rows[local];
    }
    CutHotRows(scratch, part.first_unique + local, begin, count);
    if (count > kHot) count = 0;
    unsigned todo = __ballot_sync(kFullWarp, count != 0);
    while (todo != 0) {
      const int lane = __ffs(static_cast<int>(todo)) - 1;
      todo &= todo - 1;
      const int64_t target = __shfl_sync(kFullWarp, row, lane);
      const uint32_t first = __shfl_sync(kFullWarp, begin, lane);
      const uint32_t ids = __shfl_sync(kFullWarp, count, lane);
      if (wide) {
        UpdateRowByWarp<Rule, 4>(rule, list, scratch, table, target, first, ids);
      } else {
        UpdateRowByWarp<Rule, 1>(rule, list, scratch, table, target, first, ids);
      }
    }
  }
}

template <class Rule, class List, class Tables>
__global__ void __launch_bounds__(kThreads, 4)
    UpdateHotKernel(const __grid_constant__ List list, const __grid_constant__ Tables parts,
                    OptimizerKind kind, UpdateScratch scratch) {
  const uint32_t num_pieces = scratch.hot_counts[0];
  if (num_pieces == 0 || scratch.group->run == 0) return;
  const uint32_t warps = gridDim.x * (kThreads / 32);
  for (uint32_t p = (blockIdx.x * kThreads + threadIdx.x) / 32; p < num_pieces; p += warps) {
    const HotPiece piece = scratch.pieces[p];
    const UpdateTable& part = TableOfUnique(parts, piece.unique);
    if (part.kind != kind) continue;
    const TableView& table = scratch.tables[part.table];
    const Rule rule(scratch.optimizers[part.table], OperandsOf(scratch, part.table));
    const int64_t row = part.unique_rows[piece.unique - part.first_unique];
    if (table.layout.dim % 4 == 0) {
      UpdateHotByWarp<Rule, 4>(rule, list, scratch, table, row, piece);
    } else {
      UpdateHotByWarp<Rule, 1>(rule, list, scratch, table, row, piece);
    }
  }
}

}  // namespace dynemb
