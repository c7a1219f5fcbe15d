// Steps of rows whose columns are of 16 bits.
#include "core/optimizer/dispatch.h"
#include "cuda/launch_steps.cuh"

namespace dynemb {
namespace {

// So many tables a launch, and features in device memory: one kernel each for rule and
// gradients, which finds out itself whether it clips.
template <bool kGrads16>
void LaunchStepsOf(OptimizerKind kind, const GradientCall& call, const UpdateTables& some,
                   cudaStream_t stream) {
  const GradientsOnDevice list{call.list_on_device, static_cast<int>(call.list.size())};
  UpdateTablesOf<kFewTables> few{};
  few.count = some.count;
  few.warps = some.warps;
  few.runs = some.runs;
  std::copy(some.tables, some.tables + some.count, few.tables);
  DispatchRule(kind, [&]<class Rule>() {
    LaunchRuns<Clipped<Rule>, Runs16<kGrads16>, Runs16<false>>(list, few, call.scratch, stream);
  });
}

}  // namespace

void LaunchSteps16(const GradientCall& call, cudaStream_t stream) {
  // Tables one after the other; those that can share a launch do.
  for (int first = 0; first < call.parts.count;) {
    const auto is_16 = [&](int p) {
      return call.rows_are_16[static_cast<size_t>(call.parts.tables[p].table)];
    };
    const auto grads_are_16 = [&](int p) {
      return call.ids_of_part[static_cast<size_t>(p)].are_16;
    };
    if (!is_16(first)) {
      ++first;
      continue;
    }
    const OptimizerKind kind = call.parts.tables[first].kind;
    int end = first + 1;
    while (end < call.parts.count && end - first < kFewTables && is_16(end) &&
           call.parts.tables[end].kind == kind && grads_are_16(end) == grads_are_16(first)) {
      ++end;
    }
    const UpdateTables some = TablesOf(call, [&](const UpdateTable& part) {
      const std::ptrdiff_t p = &part - call.parts.tables;
      return p >= first && p < end;
    });
    if (some.runs > 0) {
      if (grads_are_16(first)) {
        LaunchStepsOf<true>(kind, call, some, stream);
      } else {
        LaunchStepsOf<false>(kind, call, some, stream);
      }
    }
    first = end;
  }
}

}  // namespace dynemb
