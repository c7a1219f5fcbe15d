// The steps of rows whose columns are of 16 bits. Kernels find out themselves whether they clip.
#include "core/optimizer/dispatch.h"
#include "cuda/clipped.cuh"
#include "cuda/launch_steps.cuh"

namespace dynemb {

void LaunchSteps16(OptimizerKind kind, bool grads_are_16, const GradientsOnDevice& list,
                   const FewUpdateTables& some, const UpdateScratch& scratch, cudaStream_t stream) {
  DispatchRule(kind, [&]<class Rule>() {
    if (grads_are_16) {
      LaunchRuns<Clipped<Rule>, Runs16<true>, Runs16<false>>(list, some, scratch, stream);
    } else {
      LaunchRuns<Clipped<Rule>, Runs16<false>, Runs16<false>>(list, some, scratch, stream);
    }
  });
}

}  // namespace dynemb
