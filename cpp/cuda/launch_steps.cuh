// Launches of the kernels that sum sorted gradients by row, and step each row by a rule.
#pragma once

#include <vector>

#include "cuda/gradient_call.h"
#include "cuda/join_runs.cuh"
#include "cuda/step_runs.cuh"

namespace dynemb {

// The tables of a call for which choose(part) says so, with their shares of a launch.
template <class Choose>
UpdateTables TablesOf(const GradientCall& call, const Choose& choose) {
  UpdateTables some{};
  for (int p = 0; p < call.parts.count; ++p) {
    if (!choose(call.parts.tables[p])) continue;
    UpdateTable& part = some.tables[some.count++];
    part = call.parts.tables[p];
    part.first_warp = some.warps;
    part.first_run = some.runs;
    const TableIds& of = call.ids_of_part[static_cast<size_t>(p)];
    const uint32_t teams = 32u / static_cast<uint32_t>(LanesOfRow(of.dim, of.most, kRunLanes));
    some.runs += of.Runs();
    some.warps += (of.Runs() + teams - 1) / teams;
  }
  return some;
}

// JoinElements: as Elements, but that shares of a row are floats whatever gradients are.
template <class Rule, class Elements, class JoinElements, class List, class Tables>
void LaunchRuns(const List& list, const Tables& tables, const UpdateScratch& scratch,
                cudaStream_t stream) {
  const unsigned step_blocks = (tables.warps * 32 + kRunThreads - 1) / kRunThreads;
  const unsigned join_blocks = (tables.runs * 32 + kJoinThreads - 1) / kJoinThreads;
  StepRunsKernel<Rule, Elements><<<step_blocks, kRunThreads, 0, stream>>>(list, tables, scratch);
  JoinRunsKernel<Rule, JoinElements>
      <<<join_blocks, kJoinThreads, 0, stream>>>(list, tables, scratch);
}

// Of rows that are floats.
template <class Rule>
void LaunchSteps(const GradientCall& call, const UpdateTables& some, cudaStream_t stream) {
  if (some.runs == 0) return;
  WithFew(call.list, call.list_on_device, some, [&](const auto& list, const auto& tables) {
    LaunchRuns<Rule, FloatRuns, FloatRuns>(list, tables, call.scratch, stream);
  });
}

// Of special tables, all of one kind: whose gradients are clipped, or whose columns are of 16
// bits, with gradients of floats or of 16 bits.
using FewUpdateTables = UpdateTablesOf<kFewTables>;
void LaunchClippedSteps(OptimizerKind kind, const GradientsOnDevice& list,
                        const FewUpdateTables& some, const UpdateScratch& scratch,
                        cudaStream_t stream);
void LaunchSteps16(OptimizerKind kind, bool grads_are_16, const GradientsOnDevice& list,
                   const FewUpdateTables& some, const UpdateScratch& scratch, cudaStream_t stream);

}  // namespace dynemb
