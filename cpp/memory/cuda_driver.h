// The driver functions we use, looked up when first needed: the module imports on
// a machine without a driver.
#pragma once

#include <cuda.h>

#include "core/status.h"

namespace dynemb {

struct CudaDriver {
  decltype(&cuMemAddressReserve) address_reserve;
  decltype(&cuMemAddressFree) address_free;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
  decltype(&cuMemGetAllocationGranularity) granularity;
  decltype(&cuGetErrorName) error_name;

  // kDevice if the driver lacks one of them.
  static Status Get(const CudaDriver** driver);
  Status Check(CUresult result, const char* what) const;
};

}  // namespace dynemb
