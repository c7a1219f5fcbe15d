// Writes given rows for given keys on the device: a lookup without outputs, then the
// last of equal keys writes.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/call_state.cuh"
#include "cuda/cuda_backend.h"
#include "cuda/end_call.cuh"
#include "cuda/scratch.h"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

using OneTable = CallTablesOf<1>;

// How many of the keys are meant, as a length that the probe understands.
__global__ void CopyCountKernel(const int32_t* count, int64_t capacity, int32_t* length) {
  *length = max(0, min(*count, static_cast<int32_t>(capacity)));
}

// The last position of each unique row.
__global__ void __launch_bounds__(kThreads)
    LastKernel(LookupScratch scratch, const __grid_constant__ OneTable tables, int64_t capacity,
               int32_t* last) {
  if (!Runs(*scratch.group)) return;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= capacity) return;
  const int64_t row = Resolve(tables, scratch, 0, scratch.rows[i]).row;
  if (row < 0) return;
  const TableView& view = scratch.tables[tables.table[0]];
  const uint32_t unique = static_cast<uint32_t>(view.stamps[row] & 0xFFFFFFFFu);
  atomicMax(&last[unique], static_cast<int32_t>(i));
}

// A warp a key: the last one of its row writes it.
__global__ void __launch_bounds__(kThreads)
    WriteKernel(LookupScratch scratch, const __grid_constant__ OneTable tables, int64_t capacity,
                const int32_t* last, const float* rows, const float* state,
                unsigned long long* refused) {
  if (!Runs(*scratch.group)) return;
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (i >= capacity) return;
  const TableView& view = scratch.tables[tables.table[0]];
  const int64_t row = Resolve(tables, scratch, 0, scratch.rows[i]).row;
  if (row == kRowRefused && Lane() == 0) atomicAdd(refused, 1ull);
  if (row < 0) return;
  if (last[view.stamps[row] & 0xFFFFFFFFu] != static_cast<int32_t>(i)) return;
  float* values = view.Row(row);
  const RowLayout& layout = view.layout;
  for (int column = Lane(); column < layout.dim; column += 32) {
    layout.StoreColumn(rows[i * layout.dim + column], values, column);
  }
  const int64_t first = layout.VectorOffset(0), scalars = layout.ScalarOffset();
  if (state == nullptr) {
    for (int64_t k = first + Lane(); k < view.stride_floats; k += 32) {
      const int64_t word = k - layout.KeyOffset();
      if (!layout.keeps_key || word < 0 || word > 1) values[k] = view.FirstState(k);
    }
    return;
  }
  const float* from = state + i * layout.StateFloats();
  for (int v = 0; v < layout.vectors; ++v) {
    for (int column = Lane(); column < layout.dim; column += 32) {
      values[layout.VectorOffset(v) + column] = from[int64_t{v} * layout.dim + column];
    }
  }
  for (int k = Lane(); k < layout.scalars; k += 32) {
    values[scalars + k] = from[int64_t{layout.vectors} * layout.dim + k];
  }
}

__global__ void __launch_bounds__(kEndThreads)
    EndAssignKernel(const __grid_constant__ OneTable tables, LookupScratch scratch,
                    const int32_t* length, const unsigned long long* refused, int32_t* token_out,
                    SnapshotTarget snapshot) {
  if (threadIdx.x == 0) {
    GroupState& group = *scratch.group;
    if (!Runs(group)) {
      EndUndone(group, token_out);
    } else {
      TableState& state = scratch.states[tables.table[0]];
      BookNewRows(state, scratch.counts[0].new_rows, FreeRows(tables, scratch, 0));
      state.counters.evicted += scratch.counts[0].evicted;
      state.counters.assigned += *length - static_cast<int64_t>(*refused);
      state.counters.assign_refused += static_cast<int64_t>(*refused);
      NextVersion(group);
      *token_out = group.version;
    }
    scratch.counts[0] = CallCounts{};
    ResetCall(group);
  }
  WriteSnapshot(snapshot);
}

}  // namespace

Status CudaBackend::Assign(const Executor& exec, TokenPair token, const AssignBatch& batch) {
  std::lock_guard<std::mutex> lock(mutex_);
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  DYNEMB_RETURN_IF_ERROR(Poll(exec));
  const int64_t capacity = batch.keys.capacity;
  ScratchPlan plan;
  const size_t length = plan.Add<int32_t>(1);
  const size_t refused = plan.Add<unsigned long long>(1);
  const size_t unique_rows = plan.Add<int64_t>(capacity);
  const size_t last = plan.Add<int32_t>(capacity);
  DYNEMB_RETURN_IF_ERROR(plan.Allocate(exec));
  CopyCountKernel<<<1, 1, 0, stream>>>(batch.keys.count, capacity, plan.At<int32_t>(length));
  DYNEMB_CUDA_RETURN_IF_ERROR(
      cudaMemsetAsync(plan.At<void>(refused), 0, sizeof(unsigned long long), stream));
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(
      plan.At<void>(last), 0xFF, static_cast<size_t>(capacity) * sizeof(int32_t), stream));

  const FeatureInput feature{
      batch.keys.table, Combiner::kNone, KeyFormat::kBits64,       Padding::kLengths, 1,
      capacity,         batch.keys.keys, plan.At<int32_t>(length), nullptr,           nullptr};
  const RowsOutput no_rows{nullptr, RowType::kFloat32};
  int32_t* no_index = nullptr;
  int64_t* uniques = plan.At<int64_t>(unique_rows);
  LookupBatch lookup{{&feature, 1},          {&no_rows, 1}, {&no_index, 1},
                     {&batch.keys.table, 1}, {&uniques, 1}, nullptr};
  DeviceLookup call;
  call.replayable = false;
  const auto insert = [&]() -> Status {
    DYNEMB_RETURN_IF_ERROR(PrepareLookup(exec, lookup, &call));
    DYNEMB_RETURN_IF_ERROR(MakeRoom(exec, token.in, &call));
    DYNEMB_RETURN_IF_ERROR(Probe(exec, token.in, true, &call));
    return Insert(exec, &call);
  };
  const Status inserted = insert();
  if (!inserted.ok()) {
    ForgetCall(exec, call);
    return inserted;
  }
  const OneTable tables = Few<1>(call.tables);
  LastKernel<<<Blocks(capacity), kThreads, 0, stream>>>(call.scratch, tables, capacity,
                                                        plan.At<int32_t>(last));
  WriteKernel<<<Blocks(capacity * 32), kThreads, 0, stream>>>(
      call.scratch, tables, capacity, plan.At<int32_t>(last), batch.rows, batch.state,
      plan.At<unsigned long long>(refused));
  SnapshotTarget snapshot;
  DYNEMB_RETURN_IF_ERROR(snapshots_.Reserve(stream, &snapshot));
  EndAssignKernel<<<1, kEndThreads, 0, stream>>>(tables, call.scratch, plan.At<int32_t>(length),
                                                 plan.At<unsigned long long>(refused), token.out,
                                                 snapshot);
  table(batch.keys.table).Enqueued(snapshots_.last_call(), call.tables.room[0]);
  return CudaStatus(cudaGetLastError(), "assign");
}

}  // namespace dynemb
