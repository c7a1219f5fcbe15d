// train=False on the device.
#include <cuda_runtime.h>

#include "cuda/cuda_backend.h"
#include "cuda/find_kernels.cuh"
#include "cuda/pool_kernels.cuh"
#include "memory/cuda_check.h"

namespace dynemb {

Status CudaBackend::Find(const Executor& exec, TokenPair token, const FindBatch& batch) {
  std::lock_guard<std::mutex> lock(mutex_);
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  DYNEMB_RETURN_IF_ERROR(Poll(exec));
  for (size_t first = 0; first < batch.features.size(); first += kMaxFeatures) {
    FeatureList list{};
    const size_t last = std::min(batch.features.size(), first + kMaxFeatures);
    for (size_t f = first; f < last; ++f) {
      const FeatureInput& input = batch.features[f];
      list.features[list.count++] = FeatureParam{input.keys,
                                                 input.lengths,
                                                 input.mask,
                                                 input.weights,
                                                 nullptr,
                                                 batch.rows[f],
                                                 nullptr,
                                                 input.NumIds(),
                                                 input.NumOutputRows(),
                                                 input.bag_length,
                                                 0,
                                                 0,
                                                 input.table,
                                                 0,
                                                 input.format,
                                                 input.padding,
                                                 input.combiner,
                                                 false};
    }
    WithFeatures(list, false, [&](uint32_t blocks, const auto& some) {
      FindKernel<<<blocks, kThreads, 0, stream>>>(some, views_, FindRows{states_});
    });
    LaunchPool(list, views_, FindRows{states_}, stream);
  }
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return PassToken(exec, token);
}

}  // namespace dynemb
