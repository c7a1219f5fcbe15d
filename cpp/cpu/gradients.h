// Gradients of looked-up ids, summed per row. A counting sort by unique row: each
// thread owns a range of rows and finds their gradients itself, so there are no
// locks, and the sum of a row runs in the order of the ids whatever the number of
// threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/optimizer/clip.h"
#include "cpu/cpu_table.h"
#include "cpu/gather.h"
#include "cpu/thread_pool.h"
#include "table/batch.h"

namespace dynemb {

// One feature of one lookup, ready to be read id by id.
struct GradientSource {
  const FeatureGradient* gradient;
  const int32_t* merged;          // unique row of the lookup -> of the update; null: same
  std::vector<float> bag_scales;  // d pooled / d row; empty where not pooled
  const float* grads;             // of the gradient
  std::vector<float> wide = {};   // they themselves, where they came in 16 bits
};

// All gradients that one update brings to a table.
struct TableGradients {
  CpuTable* table = nullptr;
  std::vector<GradientSource> sources;  // empty: none
  const int64_t* unique_rows = nullptr;
  int32_t num_unique = 0;
  int64_t num_ids = 0;
};

// Checks what the residuals say about one table and makes its gradients ready. Uses
// the table's scratch, so its result holds until the next call. epoch: of this pass.
Status PrepareGradients(CpuTable& table, int table_position,
                        std::span<const LookupResidual> lookups, uint32_t epoch,
                        TableGradients* gradients);

namespace internal {

// grad points at a row of the caller's gradient: [dim].
struct Contribution {
  const float* grad;
  float scale;
};

// Calls body(unique row, contribution) for every id of the sources whose unique
// row lies in [low, high).
template <class Body>
void ForEachContribution(const TableGradients& gradients, int32_t low, int32_t high, Body&& body) {
  const int64_t dim = gradients.table->layout().dim;
  for (const GradientSource& source : gradients.sources) {
    const FeatureGradient& gradient = *source.gradient;
    const bool pooled = gradient.combiner != Combiner::kNone;
    const int64_t outputs = pooled ? gradient.num_bags : gradient.NumIds();
    for (int64_t output = 0; output < outputs; ++output) {
      float bag_scale = pooled ? source.bag_scales[static_cast<size_t>(output)] : 1.0f;
      const IdRange ids = IdsOfOutput(gradient, output);
      for (int64_t id = ids.begin; id < ids.end; ++id) {
        int32_t unique = gradient.index[id];
        if (unique < 0) continue;
        if (source.merged != nullptr) unique = source.merged[unique];
        if (unique < low || unique >= high) continue;
        float weight = pooled && gradient.weights != nullptr ? gradient.weights[id] : 1.0f;
        body(unique, Contribution{source.grads + output * dim, weight * bag_scale});
      }
    }
  }
}

// sum of scale_i grad_i, in double: a key may fill the whole batch, and a float
// sum of a million equal terms loses three digits.
const float* Sum(const Contribution* begin, const Contribution* end, int dim, double* wide,
                 float* sum);
// The gradient, scaled down to max_norm where it is longer. clipped: space for it.
const float* Clip(const float* grad, int dim, float max_norm, float* clipped);

// Calls body(u, gradient) for the unique rows [low, high).
template <class Body>
void ForRange(const TableGradients& gradients, int32_t low, int32_t high, Body&& body) {
  constexpr int32_t kAhead = 6;
  thread_local Scratch<int32_t> ends_scratch;
  thread_local Scratch<Contribution> sorted_scratch;
  const CpuTable& table = *gradients.table;
  const RowLayout& layout = table.layout();
  const int row_floats = static_cast<int>(layout.StrideFloats());
  const float max_norm = table.config().optimizer.max_grad_norm;
  const int32_t rows = high - low;

  // ends[u] first counts, then is where the next contribution of u goes, and at
  // last is the end of u's segment.
  int32_t* ends = ends_scratch.Get(rows);
  std::fill(ends, ends + rows, 0);
  ForEachContribution(gradients, low, high,
                      [&](int32_t u, const Contribution&) { ++ends[u - low]; });
  int32_t total = 0;
  for (int32_t u = 0; u < rows; ++u) total += std::exchange(ends[u], total);
  Contribution* sorted = sorted_scratch.Get(total);
  ForEachContribution(gradients, low, high, [&](int32_t u, const Contribution& contribution) {
    sorted[ends[u - low]++] = contribution;
  });

  std::vector<double> wide(static_cast<size_t>(layout.dim));
  std::vector<float> sum(static_cast<size_t>(layout.dim));
  for (int32_t u = 0, begin = 0; u < rows; begin = ends[u++]) {
    if (u + kAhead < rows) {
      PrefetchRow(table.Row(RowIndex{gradients.unique_rows[low + u + kAhead]}), row_floats);
      PrefetchRow(sorted[ends[u + kAhead - 1]].grad, layout.dim);
    }
    const float* grad = Sum(sorted + begin, sorted + ends[u], layout.dim, wide.data(), sum.data());
    if (max_norm > 0.0f) grad = Clip(grad, layout.dim, max_norm, sum.data());
    body(low + u, grad);
  }
}

}  // namespace internal

// Calls body(u, gradient) once for every unique row u, on several threads; gradient
// is the row's, summed and, where the table says so, clipped: [dim].
template <class Body>
void ForEachRowGradient(const TableGradients& gradients, Body&& body) {
  ThreadPool& pool = ThreadPool::Shared();
  int64_t parts = std::clamp<int64_t>(gradients.num_ids / 4096, 1, pool.width());
  pool.Run(static_cast<int>(parts), [&](int part) {
    int64_t low = gradients.num_unique * int64_t{part} / parts;
    int64_t high = gradients.num_unique * (int64_t{part} + 1) / parts;
    if (low < high) {
      internal::ForRange(gradients, static_cast<int32_t>(low), static_cast<int32_t>(high), body);
    }
  });
}

}  // namespace dynemb
