// CUDA's error codes as Status.
#pragma once

#include <cuda_runtime_api.h>

#include "core/status.h"

namespace dynemb {

inline Status CudaStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status();
  return MakeStatus(StatusCode::kDevice, what, " failed: ", cudaGetErrorName(error), " (",
                    cudaGetErrorString(error), ")");
}

#define DYNEMB_CUDA_RETURN_IF_ERROR(call) \
  DYNEMB_RETURN_IF_ERROR(::dynemb::CudaStatus((call), #call))

}  // namespace dynemb
