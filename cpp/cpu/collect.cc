// Summed gradients, rows and state of looked-up ids, for an optimizer that runs outside
// of the engine.
#include <algorithm>
#include <mutex>

#include "cpu/cpu_backend.h"
#include "cpu/gradients.h"

namespace dynemb {
namespace {

// A row of the table's becomes row u of the collected ones.
void CollectRow(const CpuTable& table, const CollectedRows& collected, int64_t u,
                const float* row) {
  const RowLayout& layout = table.layout();
  float* values = collected.rows + u * layout.dim;
  const float* embedding = table.Embedding(row, values);
  if (embedding != values) std::copy_n(embedding, layout.dim, values);
  for (int v = 0; v < layout.vectors; ++v) {
    std::copy_n(row + layout.VectorOffset(v), layout.dim,
                collected.vectors[static_cast<size_t>(v)] + u * layout.dim);
  }
  layout.LoadScalars(row, collected.scalars + u * layout.scalars);
}

// Padding looks like a new row without a gradient, so that no optimizer makes NaNs of it.
void CollectPadding(const CpuTable& table, const CollectedRows& collected, int64_t begin) {
  const int dim = table.layout().dim;
  const OutsideState& first = *table.config().outside;
  const int64_t end = collected.capacity;
  std::fill(collected.unique_rows + begin, collected.unique_rows + end,
            static_cast<int64_t>(kNoRow));
  std::fill(collected.grads + begin * dim, collected.grads + end * dim, 0.0f);
  std::fill(collected.rows + begin * dim, collected.rows + end * dim, 0.0f);
  for (size_t v = 0; v < collected.vectors.size(); ++v) {
    std::fill(collected.vectors[v] + begin * dim, collected.vectors[v] + end * dim,
              first.vectors[v]);
  }
  for (int64_t u = begin; u < end; ++u) {
    std::copy(first.scalars.begin(), first.scalars.end(),
              collected.scalars + u * table.layout().scalars);
  }
}

}  // namespace

Status CpuBackend::Collect(const Executor&, TokenPair token, const CollectBatch& batch) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  DYNEMB_RETURN_IF_ERROR(CheckToken(*token.in));
  for (const LookupResidual& lookup : batch.lookups) {
    DYNEMB_RETURN_IF_ERROR(CheckLookup(lookup));
  }
  const uint32_t epoch = NextEpoch();
  for (const CollectedRows& collected : batch.tables) {
    CpuTable& source = table(collected.table);
    TableGradients gradients;
    DYNEMB_RETURN_IF_ERROR(
        PrepareGradients(source, collected.table, batch.lookups, epoch, &gradients));
    const int dim = source.layout().dim;
    ForEachRowGradient(gradients, [&](int32_t u, const float* grad) {
      const RowIndex row{gradients.unique_rows[u]};
      collected.unique_rows[u] = gradients.unique_rows[u];
      std::copy_n(grad, dim, collected.grads + int64_t{u} * dim);
      CollectRow(source, collected, u, source.Row(row));
    });
    CollectPadding(source, collected, gradients.num_unique);
    *collected.count = gradients.num_unique;
  }
  *token.out = *token.in;
  return Status();
}

}  // namespace dynemb
