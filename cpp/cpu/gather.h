// From row numbers to the rows that a call returns: copied, or pooled in bags.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/pool.h"
#include "cpu/cpu_table.h"
#include "cpu/probe_block.h"
#include "table/batch.h"

namespace dynemb {

inline void PrefetchRow(const float* row, int dim) {
  for (int column = 0; column < dim; column += 16) __builtin_prefetch(row + column);
}

inline void AddScaled(const float* __restrict row, double weight, int dim,
                      double* __restrict total) {
  for (int column = 0; column < dim; ++column) {
    total[column] += weight * static_cast<double>(row[column]);
  }
}

// The row of one id, wherever it comes from; null for padding. `spare` is space
// for a row that has no address: [dim].
inline const float* RowOrMissing(const CpuTable& table, const FeatureInput& feature, int64_t id,
                                 int64_t row, float* spare) {
  if (row >= 0) return table.Embedding(table.Row(RowIndex{row}), spare);
  if (row == kRowPadded) return nullptr;
  table.FillMissing(LoadKey(feature, id), spare);
  return spare;
}

// The ids that an output of a feature is made of: one where it is not pooled.
// feature: FeatureInput or FeatureGradient.
template <class Feature>
IdRange IdsOfOutput(const Feature& feature, int64_t output) {
  if (feature.combiner == Combiner::kNone) return {output, output + 1};
  return feature.Bag(output);
}

// Writes outputs [begin, end) of a feature: ids where it is not pooled, bags
// where it is. rows[i] belongs to id first_id + i. out: [NumOutputRows, dim].
inline void Gather(const CpuTable& table, const FeatureInput& feature, const int64_t* rows,
                   int64_t first_id, int64_t begin, int64_t end, const RowsOutput& out) {
  constexpr int64_t kAhead = 8;
  const int dim = table.layout().dim;
  const int embedding_floats = table.layout().EmbeddingFloats();
  const size_t row_bytes = static_cast<size_t>(dim) * sizeof(float);
  const bool pooled = feature.combiner != Combiner::kNone;
  const int64_t last_id = begin < end ? IdsOfOutput(feature, end - 1).end : 0;
  std::unique_ptr<float[]> spare(new float[static_cast<size_t>(dim)]);
  // In double: a bag may hold a million ids, and a float sum of them three digits.
  std::unique_ptr<double[]> total_owner(new double[static_cast<size_t>(dim)]);
  double* const total = total_owner.get();
  const bool writes_floats = out.type == RowType::kFloat32;
  std::unique_ptr<float[]> wide(writes_floats ? nullptr : new float[static_cast<size_t>(dim)]);
  for (int64_t bag = begin; bag < end; ++bag) {
    float* target = writes_floats ? static_cast<float*>(out.values) + bag * dim : wide.get();
    BagSums sums;
    if (pooled) std::fill(total, total + dim, 0.0);
    const IdRange ids = IdsOfOutput(feature, bag);
    for (int64_t id = ids.begin; id < ids.end; ++id) {
      if (int64_t ahead = id + kAhead; ahead < last_id && rows[ahead - first_id] >= 0) {
        PrefetchRow(table.Row(RowIndex{rows[ahead - first_id]}), embedding_floats);
      }
      const float* row = RowOrMissing(table, feature, id, rows[id - first_id], spare.get());
      if (!pooled) {
        if (row == nullptr) {
          std::memset(target, 0, row_bytes);
        } else {
          std::memcpy(target, row, row_bytes);
        }
      } else if (row != nullptr) {
        float weight = feature.weights == nullptr ? 1.0f : feature.weights[id];
        sums.Add(weight);
        AddScaled(row, static_cast<double>(weight), dim, total);
      }
    }
    if (pooled) {
      const double scale = static_cast<double>(BagScale(feature.combiner, sums));
      for (int column = 0; column < dim; ++column) {
        target[column] = static_cast<float>(total[column] * scale);
      }
    }
    if (writes_floats) continue;
    uint16_t* bits = static_cast<uint16_t*>(out.values) + bag * dim;
    for (int column = 0; column < dim; ++column) bits[column] = Nearest16(out.type, target[column]);
  }
}

}  // namespace dynemb
