// The steps of tables that clip their gradients: kernels of their own, so that those of other
// tables know nothing of it.
#include "core/optimizer/dispatch.h"
#include "cuda/clipped.cuh"
#include "cuda/launch_steps.cuh"

namespace dynemb {

void LaunchClippedSteps(OptimizerKind kind, const GradientsOnDevice& list,
                        const FewUpdateTables& some, const UpdateScratch& scratch,
                        cudaStream_t stream) {
  DispatchRule(kind, [&]<class Rule>() {
    LaunchRuns<Clipped<Rule>, FloatRuns, FloatRuns>(list, some, scratch, stream);
  });
}

}  // namespace dynemb
