// Gradients of looked-up ids, summed per row, then one step of the optimizer per
// row. A counting sort by unique row: each thread owns a range of rows and finds
// their gradients itself, so there are no locks, and the sum of a row runs in the
// order of the ids whatever the number of threads.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <vector>

#include "core/pool.h"
#include "cpu/cpu_backend.h"
#include "cpu/gather.h"
#include "cpu/thread_pool.h"

namespace dynemb {
namespace {

// One feature of one lookup, ready to be read id by id.
struct Source {
  const FeatureGradient* gradient;
  const int32_t* merged;          // unique row of the lookup -> of the update; null: same
  std::vector<float> bag_scales;  // d pooled / d row; empty where not pooled
};

struct TableUpdate {
  CpuTable* table;
  std::vector<Source> sources;
  const int64_t* unique_rows = nullptr;
  int32_t num_unique = 0;
  int64_t num_ids = 0;
};

// grad points at a row of the caller's gradient: [dim].
struct Contribution {
  const float* grad;
  float scale;
};

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

// Calls body(unique row, contribution) for every id of the sources whose unique
// row lies in [low, high).
template <class Body>
void ForEachContribution(const TableUpdate& update, int32_t low, int32_t high, Body&& body) {
  const int64_t dim = update.table->layout().dim;
  for (const Source& source : update.sources) {
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
        body(unique, Contribution{gradient.grads + output * dim, weight * bag_scale});
      }
    }
  }
}

// sum of scale_i grad_i, in double: a key may fill the whole batch, and a float
// sum of a million equal terms loses three digits.
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

template <class Rule>
void UpdateRow(const Rule& rule, const RowLayout& layout, const float* __restrict grad,
               float* __restrict row) {
  float* __restrict s0 = row + layout.VectorOffset(0);
  float* __restrict s1 = row + layout.VectorOffset(1);
  float none0 = 0.0f, none1 = 0.0f;
  float sums[2] = {};
  if constexpr (Rule::kSums > 0) {
    for (int i = 0; i < layout.dim; ++i) {
      rule.Sum(grad[i], row[i], Rule::kVectors > 0 ? s0[i] : none0,
               Rule::kVectors > 1 ? s1[i] : none1, sums);
    }
  }
  const auto terms = rule.Row(row + layout.ScalarOffset(), sums, layout.dim);
  for (int i = 0; i < layout.dim; ++i) {
    rule.Column(terms, grad[i], row[i], Rule::kVectors > 0 ? s0[i] : none0,
                Rule::kVectors > 1 ? s1[i] : none1);
  }
}

// Updates the unique rows [low, high).
template <class Rule>
void UpdateRange(const TableUpdate& update, const Rule& rule, int32_t low, int32_t high) {
  constexpr int32_t kAhead = 6;
  thread_local Scratch<int32_t> ends_scratch;
  thread_local Scratch<Contribution> sorted_scratch;
  const CpuTable& table = *update.table;
  const RowLayout& layout = table.layout();
  const int row_floats = static_cast<int>(layout.StrideFloats());
  const int32_t rows = high - low;

  // ends[u] first counts, then is where the next contribution of u goes, and at
  // last is the end of u's segment.
  int32_t* ends = ends_scratch.Get(rows);
  std::fill(ends, ends + rows, 0);
  ForEachContribution(update, low, high, [&](int32_t u, const Contribution&) { ++ends[u - low]; });
  int32_t total = 0;
  for (int32_t u = 0; u < rows; ++u) total += std::exchange(ends[u], total);
  Contribution* sorted = sorted_scratch.Get(total);
  ForEachContribution(update, low, high, [&](int32_t u, const Contribution& contribution) {
    sorted[ends[u - low]++] = contribution;
  });

  std::vector<double> wide(static_cast<size_t>(layout.dim));
  std::vector<float> sum(static_cast<size_t>(layout.dim));
  for (int32_t u = 0, begin = 0; u < rows; begin = ends[u++]) {
    if (u + kAhead < rows) {
      PrefetchRow(table.Row(RowIndex{update.unique_rows[low + u + kAhead]}), row_floats);
      PrefetchRow(sorted[ends[u + kAhead - 1]].grad, layout.dim);
    }
    const float* grad = Sum(sorted + begin, sorted + ends[u], layout.dim, wide.data(), sum.data());
    UpdateRow(rule, layout, grad, table.Row(RowIndex{update.unique_rows[low + u]}));
  }
}

void ApplyOptimizer(const TableUpdate& update, const StepOperands& operands) {
  const OptimizerParameters& parameters = update.table->config().optimizer;
  DispatchRule(parameters.kind, [&]<class Rule>() {
    const Rule rule(parameters, operands);
    ThreadPool& pool = ThreadPool::Shared();
    int64_t parts = std::clamp<int64_t>(update.num_ids / 4096, 1, pool.width());
    pool.Run(static_cast<int>(parts), [&](int part) {
      int64_t low = update.num_unique * int64_t{part} / parts;
      int64_t high = update.num_unique * (int64_t{part} + 1) / parts;
      if (low < high) {
        UpdateRange(update, rule, static_cast<int32_t>(low), static_cast<int32_t>(high));
      }
    });
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

// Checks what the residuals say about one table and prepares its update.
Status Prepare(CpuTable& table, int table_position, const UpdateBatch& batch, uint32_t epoch,
               TableUpdate* update) {
  update->table = &table;
  std::vector<std::span<const int64_t>> lists;
  for (const LookupResidual& lookup : batch.lookups) {
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
        update->sources.push_back({&gradient, nullptr, BagScales(gradient)});
        update->num_ids += gradient.NumIds();
      }
      lists.push_back(list);
    }
  }
  if (lists.size() == 1) {
    update->unique_rows = lists[0].data();
    update->num_unique = static_cast<int32_t>(lists[0].size());
    return Status();
  }
  int64_t total = 0;
  for (const auto& list : lists) total += static_cast<int64_t>(list.size());
  Merge merge{table.scratch().merged.Get(total), table.scratch().positions.Get(total), epoch};
  update->num_unique = MergeLookups(table, lists, merge);
  update->unique_rows = merge.rows;
  size_t source = 0;
  const int32_t* positions = merge.positions;
  for (const LookupResidual& lookup : batch.lookups) {
    for (size_t t = 0; t < lookup.tables.size(); ++t) {
      if (lookup.tables[t] != table_position) continue;
      for (const FeatureGradient& gradient : lookup.features) {
        if (gradient.table == table_position) update->sources[source++].merged = positions;
      }
      positions += lookup.header[kHeaderCounts + t];
    }
  }
  return Status();
}

}  // namespace

Status CpuBackend::Update(const Executor&, TokenPair token, const UpdateBatch& batch) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  DYNEMB_RETURN_IF_ERROR(CheckToken(*token.in));
  for (const LookupResidual& lookup : batch.lookups) {
    DYNEMB_RETURN_IF_ERROR(CheckLookup(lookup));
  }
  const uint32_t epoch = NextEpoch();
  std::vector<TableUpdate> updates;
  for (int t = 0; t < static_cast<int>(tables_.size()); ++t) {
    TableUpdate update;
    DYNEMB_RETURN_IF_ERROR(Prepare(table(t), t, batch, epoch, &update));
    if (!update.sources.empty() && table(t).config().trainable) {
      updates.push_back(std::move(update));
    }
  }
  const int64_t step = *batch.step < 0 ? steps_ : *batch.step;
  for (const TableUpdate& update : updates) {
    int position = update.sources[0].gradient->table;
    ApplyOptimizer(update, StepOperands{batch.learning_rates[position], step});
    update.table->counters.updates += 1;
    update.table->counters.updated_rows += update.num_unique;
  }
  steps_ = step + 1;
  for (const LookupResidual& lookup : batch.lookups) {
    const uint32_t applied = static_cast<uint32_t>(lookup.header[kHeaderGeneration]);
    std::erase_if(outstanding_, [&](const Outstanding& one) { return one.epoch == applied; });
  }
  Advance(token);
  return Status();
}

}  // namespace dynemb
