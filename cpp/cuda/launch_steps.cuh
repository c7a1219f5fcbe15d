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
    const uint32_t teams = 32u / static_cast<uint32_t>(LanesOfRow(of.dim, kRunLanes));
    some.runs += of.Runs();
    some.warps += (of.Runs() + teams - 1) / teams;
  }
  return some;
}

template <class Rule>
void LaunchSteps(const GradientCall& call, const UpdateTables& some, cudaStream_t stream) {
  if (some.runs == 0) return;
  WithFew(call.list, call.list_on_device, some,
          [&]<class List, class Tables>(const List& list, const Tables& tables) {
            StepRunsKernel<Rule, List, Tables>
                <<<(tables.warps * 32 + kRunThreads - 1) / kRunThreads, kRunThreads, 0, stream>>>(
                    list, tables, call.scratch);
            JoinRunsKernel<Rule, List, Tables>
                <<<(tables.runs * 32 + kJoinThreads - 1) / kJoinThreads, kJoinThreads, 0, stream>>>(
                    list, tables, call.scratch);
          });
}

// LaunchSteps with the rule of a kind, whose gradients are clipped.
void LaunchClippedSteps(OptimizerKind kind, const GradientCall& call, const UpdateTables& some,
                        cudaStream_t stream);

}  // namespace dynemb
