// CUDA's error codes as Status.
#pragma once

#include <cuda_runtime_api.h>

#include "core/status.h"

namespace dynemb {

inline Status CudaStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status();
  // The runtime remembers a failure until it is asked: the check behind some later
  // launch would find this one.
  (void)cudaGetLastError();
  if (error == cudaErrorMemoryAllocation) {
    size_t free = 0, total = 0;
    (void)cudaMemGetInfo(&free, &total);
    return MemoryError("GPU memory exhausted: ", what, " failed, ", free, " of ", total,
                       " bytes are free; XLA takes 75 % of the card at start: set "
                       "XLA_PYTHON_CLIENT_MEM_FRACTION lower (e.g. .30) or "
                       "XLA_PYTHON_CLIENT_PREALLOCATE=false, or bound tables with max_bytes.");
  }
  return MakeStatus(StatusCode::kDevice, what, " failed: ", cudaGetErrorName(error), " (",
                    cudaGetErrorString(error), ")");
}

#define DYNEMB_CUDA_RETURN_IF_ERROR(call) \
  DYNEMB_RETURN_IF_ERROR(::dynemb::CudaStatus((call), #call))

}  // namespace dynemb
