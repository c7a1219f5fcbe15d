// Summed gradients, rows and state of looked-up ids, for an optimizer that runs outside of
// the engine, and what has moved back into the rows.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda/cuda_backend.h"
#include "cuda/launch_steps.cuh"
#include "cuda/scratch.h"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

// The rule of a table whose rows are summed gradients: the kernels of an update make them.
struct KeepSum {
  static constexpr int kVectors = 0;
  static constexpr int kScalars = 0;
  static constexpr int kSums = 0;
  struct OnlyWrites {};
  struct RowTerms {};

  DYNEMB_HD KeepSum(const OptimizerParameters&, const StepOperands&) {}
  DYNEMB_HD RowTerms Row(float*, const float*, int) const { return {}; }
  DYNEMB_HD void Column(RowTerms, float g, float& w, float&, float&) const { w = g; }
};
static_assert(UpdateRule<KeepSum>);

constexpr uint32_t kNan = 0x7FC00000;

// Columns of a row and where they are outside: an array of one row after the other.
template <class Word>
struct RowPart {
  Word* words;     // [rows, stride]
  int64_t stride;  // of that array
  int64_t offset;  // in a row of the table
  int columns;
  uint32_t first_value;
  RowType type;  // of the columns in the table; outside they are floats
};

inline constexpr int kListParts = 8;
template <class Word>
struct RowParts {
  RowPart<Word> parts[kListParts];
  int count;
};

// Calls launch(parts) for all parts of a row: the embedding, state vectors, numbers.
// outside: CollectedRows or MovedRows.
template <class Word, class Outside, class Launch>
void ForRowParts(const RowLayout& layout, const OutsideState& first, const Outside& outside,
                 const Launch& launch) {
  std::vector<RowPart<Word>> all;
  constexpr RowType kPlain = RowType::kFloat32;
  all.push_back({reinterpret_cast<Word*>(outside.rows), layout.dim, 0, layout.dim, 0, layout.type});
  for (int v = 0; v < layout.vectors; ++v) {
    const size_t at = static_cast<size_t>(v);
    uint32_t bits;
    std::memcpy(&bits, &first.vectors[at], sizeof bits);
    all.push_back({reinterpret_cast<Word*>(outside.vectors[at]), layout.dim, layout.VectorOffset(v),
                   layout.dim, bits, kPlain});
  }
  for (int k = 0; k < layout.scalars; ++k) {
    all.push_back({reinterpret_cast<Word*>(outside.scalars) + k, layout.scalars,
                   layout.ScalarOffset() + k, 1,
                   static_cast<uint32_t>(first.scalars[static_cast<size_t>(k)]), kPlain});
  }
  for (size_t p = 0; p < all.size(); p += kListParts) {
    RowParts<Word> some{};
    while (some.count < kListParts && p + static_cast<size_t>(some.count) < all.size()) {
      some.parts[some.count] = all[p + static_cast<size_t>(some.count)];
      ++some.count;
    }
    launch(some);
  }
}

// Where the sums of a table go.
struct GradsOfTable {
  float* grads;
  int32_t table, dim;
};
struct AllGrads {
  GradsOfTable tables[kMaxCallTables];
  int count;
};

// Makes the gradients look like tables, whose row u is that of unique row u, and operands
// for their rule.
__global__ void __launch_bounds__(kThreads)
    ShowGradsKernel(const __grid_constant__ AllGrads all, TableView* views, int64_t* same,
                    int64_t num_same, float* rates, int num_rates, int32_t* step) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (int64_t u = thread; u < num_same; u += int64_t{gridDim.x} * kThreads) same[u] = u;
  if (thread == 0) *step = 0;
  if (thread < num_rates) rates[thread] = 0.0f;
  if (thread >= all.count) return;
  const GradsOfTable& one = all.tables[thread];
  TableView& view = views[one.table];
  view.values = one.grads;
  view.stride_floats = one.dim;
  view.layout = RowLayout{one.dim, 0, 0};
}

// Unique rows as they come, and zeros in place of gradients that nobody has. offsets: of
// the table's sorted gradients, or null. A warp a row.
__global__ void __launch_bounds__(kThreads)
    CollectGradsKernel(const GroupState* group, const int64_t* unique_rows, const int32_t* filled,
                       const uint32_t* offsets, int dim, int64_t capacity, int64_t* rows_out,
                       int32_t* count_out, float* grads) {
  const int64_t u = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  const bool runs = group->run != 0;
  const int64_t count = runs ? min(capacity, int64_t{*filled}) : 0;
  if (u == 0 && Lane() == 0) *count_out = static_cast<int32_t>(count);
  if (u >= capacity) return;
  if (Lane() == 0) rows_out[u] = u < count ? unique_rows[u] : static_cast<int64_t>(kNoRow);
  if (u < count && offsets != nullptr && offsets[u] < offsets[u + 1]) return;
  const float value = runs ? 0.0f : __uint_as_float(kNan);
  for (int c = Lane(); c < dim; c += 32) grads[u * dim + c] = value;
}

// Rows and state. Padding looks like a new row, so that no optimizer makes NaNs of it; a
// call that does not run gives nothing else. A warp a row.
__global__ void __launch_bounds__(kThreads)
    CollectRowsKernel(const GroupState* group, const TableView* view,
                      const __grid_constant__ RowParts<uint32_t> parts, const int64_t* unique_rows,
                      const int32_t* filled, int64_t capacity) {
  const int64_t u = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (u >= capacity) return;
  const bool runs = group->run != 0;
  const bool is_row = runs && u < *filled;
  const uint32_t* row = nullptr;
  if (is_row) row = reinterpret_cast<const uint32_t*>(view->Row(unique_rows[u]));
  for (int p = 0; p < parts.count; ++p) {
    const RowPart<uint32_t>& part = parts.parts[p];
    const uint32_t other = runs ? part.first_value : kNan;
    for (int c = Lane(); c < part.columns; c += 32) {
      uint32_t word = other;
      if (is_row && part.type == RowType::kFloat32) word = row[part.offset + c];
      if (is_row && part.type != RowType::kFloat32) {
        word = BitsOf(FloatOf16(part.type, reinterpret_cast<const uint16_t*>(row)[c]));
      }
      part.words[u * part.stride + c] = word;
    }
  }
}

// One thread a row.
__global__ void __launch_bounds__(kThreads)
    CheckMovedKernel(GroupState* group, const TableState* states, int32_t table,
                     const int64_t* unique_rows, const int32_t* count, int64_t capacity) {
  const int64_t u = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t moved = *count;
  bool valid = moved >= 0 && moved <= capacity;
  if (valid && u < moved) {
    valid = unique_rows[u] >= 0 && unique_rows[u] < states[table].high_water;
  }
  if (valid || atomicExch(&group->run, 0) == 0) return;
  group->error = DeviceError::kBadMoved;
  group->error_got = table;
}

// A warp a row.
__global__ void __launch_bounds__(kThreads)
    WriteMovedKernel(const GroupState* group, const TableView* view,
                     const __grid_constant__ RowParts<const uint32_t> parts,
                     const int64_t* unique_rows, const int32_t* count, const int32_t* step) {
  const int64_t u = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (group->run == 0 || u >= *count) return;
  uint32_t* row = reinterpret_cast<uint32_t*>(view->Row(unique_rows[u]));
  const Runs16<false> rows_of_16(*view, *step < 0 ? group->steps : int64_t{*step});
  for (int p = 0; p < parts.count; ++p) {
    const RowPart<const uint32_t>& part = parts.parts[p];
    if (part.type != RowType::kFloat32) {
      float* base = view->Row(unique_rows[u]);
      const Key key = rows_of_16.KeepsKey() ? view->layout.LoadKey(base) : 0;
      for (int c = Lane(); c < part.columns; c += 32) {
        rows_of_16.Store(Piece<1>{{FloatOf(part.words[u * part.stride + c])}}, key, base, c);
      }
      continue;
    }
    for (int c = Lane(); c < part.columns; c += 32) {
      row[part.offset + c] = part.words[u * part.stride + c];
    }
  }
}

}  // namespace

Status CudaBackend::Collect(const Executor& exec, TokenPair token, const CollectBatch& batch) {
  std::lock_guard<std::mutex> lock(mutex_);
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  DYNEMB_RETURN_IF_ERROR(Poll(exec));
  GradientCall call{token.in, batch.lookups};
  call.wanted.assign(tables_.size(), false);
  call.rule_sums.assign(tables_.size(), KeepSum::kSums);
  call.rows_are_16.assign(tables_.size(), false);
  for (const TableConfig& config : configs()) {
    call.clips.push_back(config.optimizer.max_grad_norm > 0.0f);
  }
  int64_t most_rows = 0;
  for (const CollectedRows& one : batch.tables) {
    call.wanted[static_cast<size_t>(one.table)] = true;
    most_rows = std::max(most_rows, one.capacity);
  }
  ScratchPlan plan;
  const size_t views = plan.Add<TableView>(std::ssize(tables_));
  const size_t same = plan.Add<int64_t>(most_rows);
  const size_t rates = plan.Add<float>(std::ssize(tables_));
  const size_t step = plan.Add<int32_t>(1);
  DYNEMB_RETURN_IF_ERROR(plan.Allocate(exec));
  DYNEMB_RETURN_IF_ERROR(SortGradients(exec, &call));

  // Gradients.
  AllGrads all{};
  for (const CollectedRows& one : batch.tables) {
    all.tables[all.count++] = {one.grads, one.table, table(one.table).layout().dim};
  }
  ShowGradsKernel<<<std::max(1u, std::min(Blocks(most_rows), 4 * num_sms_)), kThreads, 0, stream>>>(
      all, plan.At<TableView>(views), plan.At<int64_t>(same), most_rows, plan.At<float>(rates),
      static_cast<int>(tables_.size()), plan.At<int32_t>(step));
  const TableView* tables_of_rows = call.scratch.tables;
  call.scratch.tables = plan.At<TableView>(views);
  call.scratch.learning_rates = plan.At<float>(rates);
  call.scratch.step = plan.At<int32_t>(step);
  for (bool clips : {false, true}) {
    if (!call.has_gradients) break;
    UpdateTables some = TablesOf(call, [&](const UpdateTable& part) {
      return call.clips[static_cast<size_t>(part.table)] == clips;
    });
    for (int p = 0; p < some.count; ++p) some.tables[p].unique_rows = plan.At<int64_t>(same);
    if (clips) {
      LaunchSteps<Clipped<KeepSum>>(call, some, stream);
    } else {
      LaunchSteps<KeepSum>(call, some, stream);
    }
  }

  // Rows.
  for (const CollectedRows& one : batch.tables) {
    for (int p = 0; p < call.parts.count; ++p) {
      const UpdateTable& part = call.parts.tables[p];
      if (part.table != one.table) continue;
      const int32_t* filled = call.filled[static_cast<size_t>(p)];
      const unsigned blocks = std::max(1u, Blocks(32 * one.capacity));
      const uint32_t* offsets =
          call.has_gradients ? call.scratch.offsets + part.first_unique : nullptr;
      const RowLayout& layout = table(one.table).layout();
      CollectGradsKernel<<<blocks, kThreads, 0, stream>>>(group_, part.unique_rows, filled, offsets,
                                                          layout.dim, one.capacity, one.unique_rows,
                                                          one.count, one.grads);
      ForRowParts<uint32_t>(
          layout, *table(one.table).config().outside, one, [&](const RowParts<uint32_t>& parts) {
            CollectRowsKernel<<<blocks, kThreads, 0, stream>>>(
                group_, tables_of_rows + one.table, parts, part.unique_rows, filled, one.capacity);
          });
    }
  }
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return PassToken(exec, token);
}

Status CudaBackend::CheckMoved(const Executor& exec, const UpdateBatch& batch) {
  for (const MovedRows& moved : batch.moved) {
    CheckMovedKernel<<<std::max(1u, Blocks(moved.capacity)), kThreads, 0,
                       static_cast<cudaStream_t>(exec.stream)>>>(
        group_, states_, moved.table, moved.unique_rows, moved.count, moved.capacity);
  }
  return CudaStatus(cudaGetLastError(), "moved rows");
}

void CudaBackend::WriteMoved(const Executor& exec, const UpdateBatch& batch) {
  for (const MovedRows& moved : batch.moved) {
    if (moved.capacity == 0) continue;
    ForRowParts<const uint32_t>(table(moved.table).layout(), *table(moved.table).config().outside,
                                moved, [&](const RowParts<const uint32_t>& parts) {
                                  WriteMovedKernel<<<Blocks(32 * moved.capacity), kThreads, 0,
                                                     static_cast<cudaStream_t>(exec.stream)>>>(
                                      group_, views_ + moved.table, parts, moved.unique_rows,
                                      moved.count, batch.step);
                                });
  }
}

}  // namespace dynemb
