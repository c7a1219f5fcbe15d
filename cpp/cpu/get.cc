// Rows and optimizer state of given keys, for the host.
#include <algorithm>
#include <mutex>

#include "cpu/cpu_backend.h"

namespace dynemb {
namespace {

// The inverse of assign's WriteState.
void ReadState(const RowLayout& layout, const float* row, float* state) {
  for (int v = 0; v < layout.vectors; ++v) {
    std::copy_n(row + layout.VectorOffset(v), layout.dim, state + int64_t{v} * layout.dim);
  }
  std::copy_n(row + layout.ScalarOffset(), layout.scalars,
              state + int64_t{layout.vectors} * layout.dim);
}

}  // namespace

Status CpuBackend::Get(const GetBatch& batch) {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  CpuTable& source = table(batch.table);
  const RowLayout& layout = source.layout();
  for (int64_t i = 0; i < batch.count; ++i) {
    Key key = batch.keys[i];
    float* out = batch.rows + i * layout.dim;
    float* state = batch.state + i * layout.StateFloats();
    RowIndex row = FindRow(source.index(), HashKey(key), key);
    batch.found[i] = row != kNoRow;
    if (row == kNoRow) {
      source.FillMissing(key, out);
      std::fill_n(state, layout.StateFloats(), 0.0f);
    } else {
      const float* values = source.Embedding(source.Row(row), out);
      if (values != out) std::copy_n(values, layout.dim, out);
      ReadState(layout, source.Row(row), state);
    }
  }
  return Status();
}

}  // namespace dynemb
