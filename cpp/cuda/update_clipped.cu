// The steps of tables that clip their gradients: kernels of their own, so that those of other
// tables know nothing of it.
#include "core/optimizer/dispatch.h"
#include "cuda/clipped.cuh"
#include "cuda/launch_steps.cuh"

namespace dynemb {

void LaunchClippedSteps(OptimizerKind kind, const GradientCall& call, const UpdateTables& some,
                        cudaStream_t stream) {
  DispatchRule(kind, [&]<class Rule>() { LaunchSteps<Clipped<Rule>>(call, some, stream); });
}

}  // namespace dynemb
