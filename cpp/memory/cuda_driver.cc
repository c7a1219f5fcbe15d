#include "memory/cuda_driver.h"

#include <cuda_runtime_api.h>

#include "memory/cuda_check.h"

namespace dynemb {
namespace {

constexpr unsigned kVersion = 12000;  // of the signatures above

template <class Function>
Status Look(const char* name, Function* function) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  DYNEMB_CUDA_RETURN_IF_ERROR(
      cudaGetDriverEntryPointByVersion(name, &entry, kVersion, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess) {
    return MakeStatus(StatusCode::kDevice, "the CUDA driver has no ", name,
                      "; update it to a driver of CUDA 12 or newer.");
  }
  *function = reinterpret_cast<Function>(entry);
  return Status();
}

Status Load(CudaDriver* driver) {
  DYNEMB_RETURN_IF_ERROR(Look("cuMemAddressReserve", &driver->address_reserve));
  DYNEMB_RETURN_IF_ERROR(Look("cuMemAddressFree", &driver->address_free));
  DYNEMB_RETURN_IF_ERROR(Look("cuMemCreate", &driver->create));
  DYNEMB_RETURN_IF_ERROR(Look("cuMemRelease", &driver->release));
  DYNEMB_RETURN_IF_ERROR(Look("cuMemMap", &driver->map));
  DYNEMB_RETURN_IF_ERROR(Look("cuMemUnmap", &driver->unmap));
  DYNEMB_RETURN_IF_ERROR(Look("cuMemSetAccess", &driver->set_access));
  DYNEMB_RETURN_IF_ERROR(Look("cuMemGetAllocationGranularity", &driver->granularity));
  return Look("cuGetErrorName", &driver->error_name);
}

}  // namespace

Status CudaDriver::Get(const CudaDriver** driver) {
  static CudaDriver loaded;
  static const Status status = Load(&loaded);
  *driver = &loaded;
  return status;
}

Status CudaDriver::Check(CUresult result, const char* what) const {
  if (result == CUDA_SUCCESS) return Status();
  const char* name = "unknown error";
  error_name(result, &name);
  return MakeStatus(StatusCode::kDevice, what, " failed: ", name);
}

}  // namespace dynemb
