// Launches whose blocks all run at once, so that they can wait for each other.
#pragma once

#include <cuda_runtime.h>

#include "cuda/device_ops.cuh"

namespace dynemb {

// Blocks of a multiprocessor that are beside each other in such a launch.
inline constexpr unsigned kBlocksPerSm = 4;

// Kernel<true> with so many blocks, or, where that is not possible, Kernel<false> with one.
template <class... Params, class... Args>
cudaError_t LaunchTogether(bool together, void (*all)(Params...), void (*alone)(Params...),
                           unsigned blocks, cudaStream_t stream, const Args&... args) {
  if (!together) {
    alone<<<1, kThreads, 0, stream>>>(args...);
    return cudaGetLastError();
  }
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = kThreads;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, all, static_cast<Params>(args)...);
}

}  // namespace dynemb
