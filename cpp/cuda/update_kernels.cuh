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

// Columns [column, column + VEC) of one row: read, stepped, written. Reading is apart,
// so that it can start before the gradient is known.
template <class Rule, int VEC>
struct RowColumns {
  Piece<VEC> w, s0, s1;

  __device__ static const float* At(const TableView& table, const float* row, int vector,
                                    int column) {
    return row + table.layout.VectorOffset(vector) + column;
  }
  __device__ void Load(const TableView& table, const float* row, int column) {
    w = Piece<VEC>::Load(row + column);
    s0 = s1 = Piece<VEC>::Filled(0.0f);
    if constexpr (Rule::kVectors > 0) s0 = Piece<VEC>::Load(At(table, row, 0, column));
    if constexpr (Rule::kVectors > 1) s1 = Piece<VEC>::Load(At(table, row, 1, column));
  }
  template <class Terms>
  __device__ void Step(const Rule& rule, const Terms& terms, const Piece<VEC>& grad) {
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      rule.Column(terms, grad.value[v], w.value[v], s0.value[v], s1.value[v]);
    }
  }
  __device__ void Store(const TableView& table, float* row, int column) const {
    w.StoreCached(row + column);
    if constexpr (Rule::kVectors > 0) {
      s0.StoreCached(const_cast<float*>(At(table, row, 0, column)));
    }
    if constexpr (Rule::kVectors > 1) {
      s1.StoreCached(const_cast<float*>(At(table, row, 1, column)));
    }
  }
};

// The row's terms, once, for all lanes of a warp; per-row numbers advance.
template <class Rule>
__device__ auto WarpTerms(const Rule& rule, const TableView& table, float* row) {
  float scalars[Rule::kScalars > 0 ? Rule::kScalars : 1] = {};
  float* at = row + table.layout.ScalarOffset();
  for (int i = 0; i < Rule::kScalars; ++i) scalars[i] = at[i];
  const auto terms = rule.Row(scalars, nullptr, table.layout.dim);
  __syncwarp();
  if (Lane() == 0) {
    for (int i = 0; i < Rule::kScalars; ++i) at[i] = scalars[i];
  }
  return terms;
}

// How the lanes of a warp share a row: `lanes` of them cover its columns (or 32 * VEC
// columns at a time), and 32 / lanes ids are summed side by side.
template <int VEC>
struct Lanes {
  int lanes, column0, sub;

  __device__ explicit Lanes(int dim) : lanes(1) {
    while (lanes < 32 && lanes * VEC < dim) lanes *= 2;
    column0 = (Lane() % lanes) * VEC;
    sub = Lane() / lanes;
  }
  __device__ int stride() const { return lanes * VEC; }
};

// Adds the gradients of the ids that lanes [offset, offset + count) hold.
template <int VEC>
__device__ void Accumulate(const Lanes<VEC>& shape, const Contribution& held, uint32_t offset,
                           uint32_t count, int column, bool active, Piece<VEC>* sum) {
  constexpr uint32_t kUnroll = 4;
  const uint32_t at_once = 32u / static_cast<uint32_t>(shape.lanes);
  for (uint32_t j = 0; j < count; j += at_once * kUnroll) {
    Piece<VEC> pieces[kUnroll];
    float scales[kUnroll];
#pragma unroll
    for (uint32_t u = 0; u < kUnroll; ++u) {
      const uint32_t k = j + u * at_once + static_cast<uint32_t>(shape.sub);
      const int from = static_cast<int>(offset + k) & 31;
      const float* grad = reinterpret_cast<const float*>(
          __shfl_sync(kFullWarp, reinterpret_cast<unsigned long long>(held.grad), from));
      scales[u] = __shfl_sync(kFullWarp, held.scale, from);
      pieces[u] = Piece<VEC>::Filled(0.0f);
      if (k < count && active) {
        pieces[u] = Piece<VEC>::Load(grad + column);
      } else {
        scales[u] = 0.0f;
      }
    }
#pragma unroll
    for (uint32_t u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) sum->value[v] += scales[u] * pieces[u].value[v];
    }
  }
}

// The same for sorted ids [begin, begin + count), fetched 32 at a time.
template <int VEC, class List>
__device__ void AccumulateRange(const Lanes<VEC>& shape, const List& list,
                                const UpdateScratch& scratch, uint32_t begin, uint32_t count,
                                int column, bool active, Piece<VEC>* sum) {
  const uint32_t lane = static_cast<uint32_t>(Lane());
  for (uint32_t base = 0; base < count; base += 32) {
    const uint32_t length = min(32u, count - base);
    Contribution held{nullptr, 0.0f};
    if (lane < length) held = ContributionOf(list, scratch.sorted[begin + base + lane]);
    Accumulate(shape, held, 0, length, column, active, sum);
  }
}

// Sums over the ids that were added side by side; all lanes get the result.
template <int VEC>
__device__ void Combine(const Lanes<VEC>& shape, Piece<VEC>* sum) {
  for (int mask = shape.lanes; mask < 32; mask *= 2) {
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      sum->value[v] += __shfl_xor_sync(kFullWarp, sum->value[v], mask);
    }
  }
}

// One warp, one row: sums its ids' gradients by add(column, active, &sum), and takes
// the step.
template <class Rule, int VEC, class Add>
__device__ void UpdateRowByWarp(const Rule& rule, const TableView& table, int64_t row,
                                const Add& add) {
  const int dim = table.layout.dim;
  const Lanes<VEC> shape(dim);
  float* values = table.Row(row);
  const auto terms = WarpTerms(rule, table, values);
  for (int start = 0; start < dim; start += shape.stride()) {
    const int column = start + shape.column0;
    const bool writes = column < dim && shape.sub == 0;
    RowColumns<Rule, VEC> columns;
    if (writes) columns.Load(table, values, column);
    Piece<VEC> sum = Piece<VEC>::Filled(0.0f);
    add(shape, column, column < dim, &sum);
    Combine(shape, &sum);
    if (writes) {
      columns.Step(rule, terms, sum);
      columns.Store(table, values, column);
    }
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
  const Lanes<VEC> shape(dim);
  float* sums = scratch.hot_sums + piece.hot * scratch.hot_stride;
  for (int start = 0; start < dim; start += shape.stride()) {
    const int column = start + shape.column0;
    Piece<VEC> sum = Piece<VEC>::Filled(0.0f);
    AccumulateRange(shape, list, scratch, static_cast<uint32_t>(piece.begin),
                    static_cast<uint32_t>(piece.count), column, column < dim, &sum);
    Combine(shape, &sum);
    if (column < dim && shape.sub == 0) AddToSums<VEC>(sums + column, sum);
  }
  __threadfence();
  __syncwarp();
  uint32_t left = 0;
  if (Lane() == 0) left = atomicSub(&scratch.hot_left[piece.hot], 1u);
  if (__shfl_sync(kFullWarp, left, 0) != 1) return;
  __threadfence();
  UpdateRowByWarp<Rule, VEC>(
      rule, table, row, [&](const Lanes<VEC>& lanes, int column, bool active, Piece<VEC>* sum) {
        if (!active || lanes.sub != 0) return;
        for (int v = 0; v < VEC; ++v) sum->value[v] = __ldcg(&sums[column + v]);
      });
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
__global__ void __launch_bounds__(kThreads, 3)
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
    const uint32_t end = __reduce_max_sync(kFullWarp, begin + count);
    CutHotRows(scratch, part.first_unique + local, begin, count);
    if (count > kHot) count = 0;
    unsigned todo = __ballot_sync(kFullWarp, count != 0);
    // Neighbouring rows have neighbouring ids: one fetch of 32 serves several rows.
    uint32_t window = end;
    Contribution held{nullptr, 0.0f};
    while (todo != 0) {
      const int lane = __ffs(static_cast<int>(todo)) - 1;
      todo &= todo - 1;
      const int64_t target = __shfl_sync(kFullWarp, row, lane);
      const uint32_t first = __shfl_sync(kFullWarp, begin, lane);
      const uint32_t ids = __shfl_sync(kFullWarp, count, lane);
      if (ids <= 32 && (window == end || first < window || first + ids > window + 32)) {
        window = first;
        const uint32_t at = window + static_cast<uint32_t>(Lane());
        held = Contribution{nullptr, 0.0f};
        if (at < end) held = ContributionOf(list, scratch.sorted[at]);
      }
      const auto add = [&](const auto& shape, int column, bool active, auto* sum) {
        if (ids <= 32) {
          Accumulate(shape, held, first - window, ids, column, active, sum);
        } else {
          AccumulateRange(shape, list, scratch, first, ids, column, active, sum);
        }
      };
      if (wide) {
        UpdateRowByWarp<Rule, 4>(rule, table, target, add);
      } else {
        UpdateRowByWarp<Rule, 1>(rule, table, target, add);
      }
    }
  }
}

template <class Rule, class List, class Tables>
__global__ void __launch_bounds__(kThreads, 3)
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
