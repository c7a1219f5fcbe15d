// One step of the optimizer for each row that has a gradient: the host's side.
#include <cuda_runtime.h>

#include <algorithm>
#include <tuple>

#include "core/optimizer/dispatch.h"
#include "cuda/cuda_backend.h"
#include "cuda/end_call.cuh"
#include "cuda/launch_steps.cuh"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

// How many rows each table of the update has moved.
struct UpdatedCounts {
  const int32_t* counts[kMaxCallTables];
  int32_t table[kMaxCallTables];
  int count;
};

template <class Counts>
__global__ void __launch_bounds__(kEndThreads)
    EndUpdateKernel(GroupState* group, TableState* states, const int32_t* step,
                    const __grid_constant__ Counts updated, const __grid_constant__ HeaderList list,
                    uint32_t* outstanding, int64_t max_outstanding, int32_t* token_out,
                    SnapshotTarget snapshot) {
  const bool runs = group->run != 0;
  for (int t = static_cast<int>(threadIdx.x); runs && t < updated.count; t += kEndThreads) {
    TableCounters& counters = states[updated.table[t]].counters;
    counters.updates += 1;
    counters.updated_rows += *updated.counts[t];
  }
  for (int64_t k = threadIdx.x; runs && k < max_outstanding; k += kEndThreads) {
    for (int i = 0; i < list.count; ++i) {
      const uint32_t looked = static_cast<uint32_t>(list.headers[i][kHeaderGeneration]);
      if (outstanding[k] == looked) outstanding[k] = 0;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    if (runs) {
      group->steps = (*step < 0 ? group->steps : int64_t{*step}) + 1;
      NextVersion(*group);
      *token_out = group->version;
    } else {
      EndUndone(*group, token_out);
    }
  }
  WriteSnapshot(snapshot);
}

// The steps of special tables; neighbours that can share a launch do.
void LaunchSpecialSteps(const GradientCall& call, cudaStream_t stream) {
  const UpdateTables& parts = call.parts;
  const GradientsOnDevice list{call.list_on_device, static_cast<int>(call.list.size())};
  const auto what = [&](int p) {  // of a table its launch has to be for
    const UpdateTable& part = parts.tables[p];
    return std::tuple(call.IsSpecial(part), part.kind,
                      call.rows_are_16[static_cast<size_t>(part.table)] == true,
                      call.ids_of_part[static_cast<size_t>(p)].are_16);
  };
  for (int first = 0, end = 0; first < parts.count; first = end) {
    for (end = first + 1; end < parts.count && end - first < kFewTables; ++end) {
      if (what(end) != what(first)) break;
    }
    const auto [is_special, kind, rows_are_16, grads_are_16] = what(first);
    if (!is_special) continue;
    const UpdateTables chosen = TablesOf(call, [&](const UpdateTable& part) {
      return &part >= parts.tables + first && &part < parts.tables + end;
    });
    if (chosen.runs == 0) continue;
    FewUpdateTables some{};
    some.count = chosen.count;
    some.warps = chosen.warps;
    some.runs = chosen.runs;
    std::copy(chosen.tables, chosen.tables + chosen.count, some.tables);
    if (rows_are_16) {
      LaunchSteps16(kind, grads_are_16, list, some, call.scratch, stream);
    } else {
      LaunchClippedSteps(kind, list, some, call.scratch, stream);
    }
  }
}

}  // namespace

Status CudaBackend::Update(const Executor& exec, TokenPair token, const UpdateBatch& batch) {
  std::lock_guard<std::mutex> lock(mutex_);
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  DYNEMB_RETURN_IF_ERROR(Poll(exec));
  GradientCall call{token.in, batch.lookups};
  for (const TableConfig& config : configs()) {
    call.wanted.push_back(config.trainable && !config.outside.has_value());
    call.clips.push_back(config.optimizer.max_grad_norm > 0.0f);
    call.rows_are_16.push_back(config.row_type != RowType::kFloat32);
    DispatchRule(config.optimizer.kind,
                 [&]<class Rule>() { call.rule_sums.push_back(Rule::kSums); });
  }
  DYNEMB_RETURN_IF_ERROR(SortGradients(exec, &call));
  DYNEMB_RETURN_IF_ERROR(CheckMoved(exec, batch));
  call.scratch.learning_rates = batch.learning_rates;
  call.scratch.step = batch.step;
  for (int32_t k = 0; k < kOptimizerKinds && call.has_gradients; ++k) {
    const OptimizerKind kind = static_cast<OptimizerKind>(k);
    const UpdateTables some = TablesOf(
        call, [&](const UpdateTable& part) { return part.kind == kind && !call.IsSpecial(part); });
    if (some.runs == 0) continue;
    DispatchRule(kind, [&]<class Rule>() { LaunchSteps<Rule>(call, some, stream); });
  }
  if (call.has_gradients) LaunchSpecialSteps(call, stream);
  WriteMoved(exec, batch);

  UpdatedCounts updated{};
  const auto count = [&](int32_t table, const int32_t* rows) {
    updated.table[updated.count] = table;
    updated.counts[updated.count++] = rows;
  };
  for (int p = 0; p < call.parts.count; ++p) {
    count(call.parts.tables[p].table, call.filled[static_cast<size_t>(p)]);
  }
  for (const MovedRows& moved : batch.moved) count(moved.table, moved.count);
  SnapshotTarget snapshot;
  DYNEMB_RETURN_IF_ERROR(snapshots_.Reserve(stream, &snapshot));
  EndUpdateKernel<UpdatedCounts>
      <<<1, kEndThreads, 0, stream>>>(group_, states_, batch.step, updated, call.headers,
                                      outstanding_, max_outstanding(), token.out, snapshot);
  return CudaStatus(cudaGetLastError(), "update");
}

}  // namespace dynemb
