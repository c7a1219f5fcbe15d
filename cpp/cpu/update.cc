// One step of the optimizer for each row that has a gradient.
#include <mutex>
#include <vector>

#include "cpu/cpu_backend.h"
#include "cpu/gradients.h"

namespace dynemb {
namespace {

// w: the row's embedding, wherever it lies; the state is in the row.
template <class Rule>
void UpdateRow(const Rule& rule, const RowLayout& layout, const float* __restrict grad,
               float* __restrict w, float* __restrict row) {
  float* __restrict s0 = row + layout.VectorOffset(0);
  float* __restrict s1 = row + layout.VectorOffset(1);
  float none0 = 0.0f, none1 = 0.0f;
  float sums[2] = {};
  if constexpr (Rule::kSums > 0) {
    for (int i = 0; i < layout.dim; ++i) {
      rule.Sum(grad[i], w[i], Rule::kVectors > 0 ? s0[i] : none0,
               Rule::kVectors > 1 ? s1[i] : none1, sums);
    }
  }
  const auto terms = rule.Row(row + layout.ScalarOffset(), sums, layout.dim);
  for (int i = 0; i < layout.dim; ++i) {
    rule.Column(terms, grad[i], w[i], Rule::kVectors > 0 ? s0[i] : none0,
                Rule::kVectors > 1 ? s1[i] : none1);
  }
}

// Of this thread: [dim].
float* RowSpace(int dim) {
  thread_local Scratch<float> scratch;
  return scratch.Get(dim);
}

void ApplyOptimizer(const TableGradients& gradients, const StepOperands& operands) {
  const CpuTable& table = *gradients.table;
  const OptimizerParameters& parameters = table.config().optimizer;
  DispatchRule(parameters.kind, [&]<class Rule>() {
    const Rule rule(parameters, operands);
    ForEachRowGradient(gradients, [&](int32_t u, const float* grad) {
      float* row = table.Row(RowIndex{gradients.unique_rows[u]});
      float* w = table.keeps_floats() ? row : table.Embedding(row, RowSpace(table.layout().dim));
      UpdateRow(rule, table.layout(), grad, w, row);
      table.UpdateEmbedding(w, operands.step, row);
    });
  });
}

Status CheckMoved(const CpuTable& table, const MovedRows& moved) {
  const int32_t count = *moved.count;
  bool valid = count >= 0 && count <= moved.capacity;
  for (int32_t u = 0; valid && u < count; ++u) {
    valid = moved.unique_rows[u] >= 0 && moved.unique_rows[u] < table.pool().high_water();
  }
  return valid ? Status() : WrongMovedRows(table.config());
}

void WriteMoved(CpuTable& table, const MovedRows& moved, int64_t step) {
  const RowLayout& layout = table.layout();
  ThreadPool::Shared().ParallelFor(*moved.count, 512, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      float* row = table.Row(RowIndex{moved.unique_rows[u]});
      table.UpdateEmbedding(moved.rows + u * layout.dim, step, row);
      for (int v = 0; v < layout.vectors; ++v) {
        std::copy_n(moved.vectors[static_cast<size_t>(v)] + u * layout.dim, layout.dim,
                    row + layout.VectorOffset(v));
      }
      layout.StoreScalars(moved.scalars + u * layout.scalars, row);
    }
  });
}

void CountUpdate(CpuTable& table, int64_t rows) {
  table.counters.updates += 1;
  table.counters.updated_rows += rows;
}

}  // namespace

Status CpuBackend::Update(const Executor&, TokenPair token, const UpdateBatch& batch) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  DYNEMB_RETURN_IF_ERROR(CheckToken(*token.in));
  for (const LookupResidual& lookup : batch.lookups) {
    DYNEMB_RETURN_IF_ERROR(CheckLookup(lookup));
  }
  const uint32_t epoch = NextEpoch();
  std::vector<TableGradients> updates;
  for (int t = 0; t < static_cast<int>(tables_.size()); ++t) {
    TableGradients update;
    DYNEMB_RETURN_IF_ERROR(PrepareGradients(table(t), t, batch.lookups, epoch, &update));
    if (!update.sources.empty() && table(t).config().trainable) {
      updates.push_back(std::move(update));
    }
  }
  for (const MovedRows& moved : batch.moved) {
    DYNEMB_RETURN_IF_ERROR(CheckMoved(table(moved.table), moved));
  }
  const int64_t step = *batch.step < 0 ? steps_ : *batch.step;
  for (const TableGradients& update : updates) {
    int position = update.sources[0].gradient->table;
    ApplyOptimizer(update, StepOperands{batch.learning_rates[position], step});
    CountUpdate(*update.table, update.num_unique);
  }
  for (const MovedRows& moved : batch.moved) {
    WriteMoved(table(moved.table), moved, step);
    CountUpdate(table(moved.table), *moved.count);
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
