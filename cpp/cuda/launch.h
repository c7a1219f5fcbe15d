// How kernels follow each other on a stream.
#pragma once

#include <cuda_runtime.h>

#include <cstdlib>
#include <utility>

namespace dynemb {

// Launches a kernel whose blocks may take their places while the last ones of the
// kernel before it still run. It must begin with AwaitPrevious().
template <class... Parameters, class... Arguments>
void Launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, cudaStream_t stream,
            Arguments&&... arguments) {
  static const bool early = std::getenv("DYNEMB_PDL") != nullptr;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  // A failure stays the last error, which every verb returns at its end.
  (void)cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

#if defined(__CUDACC__)
// What kernels before this one have written is there; the next one may line up.
__device__ inline void AwaitPrevious() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
#endif

}  // namespace dynemb
