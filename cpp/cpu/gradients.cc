#include "cpu/gradients.h"

#include <atomic>

#include "core/pool.h"
#include "cpu/probe_block.h"

namespace dynemb {
namespace {

Status CheckResidual(const CpuTable& table, const FeatureGradient& gradient, int32_t count) {
  DYNEMB_RETURN_IF_ERROR(CheckRowSplits(gradient.row_splits));
  std::atomic<bool> valid{true};
  ThreadPool::Shared().ParallelFor(gradient.NumIds(), 65536, [&](int64_t begin, int64_t end) {
    int32_t low = kPadded, high = -1;
    for (int64_t i = begin; i < end; ++i) {
      low = std::min(low, gradient.index[i]);
      high = std::max(high, gradient.index[i]);
    }
    if (low < kRefused || high >= count) valid = false;
  });
  if (valid) return Status();
  return InvalidArgument("apply_gradients: acts of table '", table.config().name,
                         "' do not come from lookup (an index is outside [", kRefused, ", ", count,
                         ")); pass the Activations of lookup unchanged.");
}

std::vector<float> BagScales(const FeatureGradient& gradient) {
  std::vector<float> scales;
  if (gradient.combiner == Combiner::kNone) return scales;
  scales.resize(static_cast<size_t>(gradient.num_bags));
  for (int64_t bag = 0; bag < gradient.num_bags; ++bag) {
    BagSums sums;
    const IdRange ids = gradient.Bag(bag);
    for (int64_t id = ids.begin; id < ids.end; ++id) {
      if (gradient.index[id] == kPadded) continue;
      sums.Add(gradient.weights == nullptr ? 1.0f : gradient.weights[id]);
    }
    scales[static_cast<size_t>(bag)] = BagScale(gradient.combiner, sums);
  }
  return scales;
}

void ReadGrads(int dim, GradientSource* source) {
  const FeatureGradient& gradient = *source->gradient;
  source->grads = static_cast<const float*>(gradient.grads.values);
  const RowType type = gradient.grads.type;
  if (type == RowType::kFloat32) return;
  const bool pooled = gradient.combiner != Combiner::kNone;
  const int64_t count = (pooled ? gradient.num_bags : gradient.NumIds()) * dim;
  source->wide.resize(static_cast<size_t>(count));
  source->grads = source->wide.data();
  const uint16_t* bits = static_cast<const uint16_t*>(gradient.grads.values);
  ThreadPool::Shared().ParallelFor(count, 65536, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      source->wide[static_cast<size_t>(i)] = FloatOf16(type, bits[i]);
    }
  });
}

// One lookup: its numbering serves. Several: their unique rows are numbered anew.
struct Merge {
  int64_t* rows;       // [sum of the lookups' unique rows]
  int32_t* positions;  // the same length: where each went
  uint32_t epoch;      // of this pass
};

int32_t MergeLookups(CpuTable& table, std::span<const std::span<const int64_t>> lists,
                     const Merge& merge) {
  uint64_t* stamps = table.pool().stamps();
  const uint64_t epoch = uint64_t{merge.epoch} << 32;
  std::vector<uint64_t> former;  // bounded tables: an update is no claim, pins stay as they are
  int32_t count = 0;
  int32_t* position = merge.positions;
  for (std::span<const int64_t> list : lists) {
    for (int64_t row : list) {
      uint64_t& stamp = stamps[row];
      if ((stamp & ~uint64_t{0xFFFFFFFF}) != epoch) {
        if (table.is_bounded()) former.push_back(stamp);
        merge.rows[count] = row;
        stamp = epoch | static_cast<uint32_t>(count++);
      }
      *position++ = static_cast<int32_t>(stamp & 0xFFFFFFFF);
    }
  }
  for (size_t u = 0; u < former.size(); ++u) stamps[merge.rows[u]] = former[u];
  return count;
}

}  // namespace

Status PrepareGradients(CpuTable& table, int table_position,
                        std::span<const LookupResidual> lookups, uint32_t epoch,
                        TableGradients* gradients) {
  gradients->table = &table;
  std::vector<std::span<const int64_t>> lists;
  for (const LookupResidual& lookup : lookups) {
    for (size_t t = 0; t < lookup.tables.size(); ++t) {
      if (lookup.tables[t] != table_position) continue;
      int32_t count = lookup.header[kHeaderCounts + t];
      if (count < 0 || count > lookup.unique_capacity[t]) {
        return InvalidArgument("apply_gradients: acts of table '", table.config().name, "' claim ",
                               count, " unique rows of ", lookup.unique_capacity[t],
                               "; pass the Activations of lookup unchanged.");
      }
      std::span<const int64_t> list(lookup.unique_rows[t], static_cast<size_t>(count));
      for (int64_t row : list) {
        if (row < 0 || row >= table.pool().high_water()) {
          return InvalidArgument("apply_gradients: acts of table '", table.config().name,
                                 "' name row ", row, " of ", table.pool().high_water(),
                                 "; pass the Activations of lookup unchanged.");
        }
      }
      for (const FeatureGradient& gradient : lookup.features) {
        if (gradient.table != table_position) continue;
        DYNEMB_RETURN_IF_ERROR(CheckResidual(table, gradient, count));
        gradients->sources.push_back({&gradient, nullptr, BagScales(gradient), nullptr});
        ReadGrads(table.layout().dim, &gradients->sources.back());
        gradients->num_ids += gradient.NumIds();
      }
      lists.push_back(list);
    }
  }
  if (gradients->sources.empty()) return Status();
  if (lists.size() == 1) {
    gradients->unique_rows = lists[0].data();
    gradients->num_unique = static_cast<int32_t>(lists[0].size());
    return Status();
  }
  int64_t total = 0;
  for (const auto& list : lists) total += static_cast<int64_t>(list.size());
  Merge merge{table.scratch().merged.Get(total), table.scratch().positions.Get(total), epoch};
  gradients->num_unique = MergeLookups(table, lists, merge);
  gradients->unique_rows = merge.rows;
  size_t source = 0;
  const int32_t* positions = merge.positions;
  for (const LookupResidual& lookup : lookups) {
    for (size_t t = 0; t < lookup.tables.size(); ++t) {
      if (lookup.tables[t] != table_position) continue;
      for (const FeatureGradient& gradient : lookup.features) {
        if (gradient.table == table_position) gradients->sources[source++].merged = positions;
      }
      positions += lookup.header[kHeaderCounts + t];
    }
  }
  return Status();
}

namespace internal {

const float* Sum(const Contribution* begin, const Contribution* end, int dim, double* wide,
                 float* sum) {
  if (end - begin == 1 && begin->scale == 1.0f) return begin->grad;
  std::fill(wide, wide + dim, 0.0);
  for (const Contribution* c = begin; c != end; ++c) {
    const double scale = static_cast<double>(c->scale);
    const float* __restrict grad = c->grad;
    double* __restrict total = wide;
    for (int i = 0; i < dim; ++i) total[i] += scale * static_cast<double>(grad[i]);
  }
  for (int i = 0; i < dim; ++i) sum[i] = static_cast<float>(wide[i]);
  return sum;
}

const float* Clip(const float* grad, int dim, float max_norm, float* clipped) {
  double sum_of_squares = 0.0;
  for (int i = 0; i < dim; ++i) {
    sum_of_squares += static_cast<double>(grad[i]) * static_cast<double>(grad[i]);
  }
  const float scale = ClipScale(max_norm, sum_of_squares);
  if (scale == 1.0f) return grad;
  for (int i = 0; i < dim; ++i) clipped[i] = grad[i] * scale;
  return clipped;
}

}  // namespace internal
}  // namespace dynemb
