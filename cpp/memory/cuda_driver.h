// The driver functions we use, looked up when first needed: the module imports on
// a machine without a driver.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string_view>

#include "core/status.h"
#include "core/types.h"

namespace dynemb {

// What this process has taken from the driver and not given back.
struct DriverUse {
  int64_t ranges;       // of addresses
  int64_t allocations;  // of physical memory
  int64_t mappings;     // of the one behind the other
  Bytes reserved_bytes, allocated_bytes, mapped_bytes;
};

// The calls of CUDA's virtual memory management, for the current device. Thread-safe.
class CudaDriver {
 public:
  // kDevice if the driver lacks one of them.
  static Status Get(const CudaDriver** driver);

  CUresult Reserve(Bytes bytes, CUdeviceptr* base) const;
  CUresult Create(Bytes bytes, const CUmemAllocationProp& prop,
                  CUmemGenericAllocationHandle* handle) const;
  CUresult Map(CUdeviceptr begin, Bytes bytes, CUmemGenericAllocationHandle handle) const;
  CUresult SetAccess(CUdeviceptr begin, Bytes bytes, const CUmemAccessDesc& access) const;
  CUresult Granularity(const CUmemAllocationProp& prop, size_t* bytes) const;

  void Unmap(CUdeviceptr begin, Bytes bytes) const;
  void Release(CUmemGenericAllocationHandle handle, Bytes bytes) const;
  void Free(CUdeviceptr base, Bytes bytes) const;

  const char* ErrorName(CUresult result) const;
  Status Check(CUresult result, const char* what) const;

  DriverUse Use() const;

  // For tests. The `nth` next call of the driver function `name` (cuMemAddressReserve,
  // cuMemCreate, cuMemMap or cuMemSetAccess) by any thread returns `error` and does
  // nothing; nth = 0 disarms. Replaces what was armed before and returns its calls to
  // go in *left, 0 if none. Disarmed it costs each of the four one load.
  static Status FailCall(std::string_view name, int64_t nth, CUresult error, int64_t* left);

 private:
  Status Load();

  decltype(&cuMemAddressReserve) address_reserve_ = nullptr;
  decltype(&cuMemAddressFree) address_free_ = nullptr;
  decltype(&cuMemCreate) create_ = nullptr;
  decltype(&cuMemRelease) release_ = nullptr;
  decltype(&cuMemMap) map_ = nullptr;
  decltype(&cuMemUnmap) unmap_ = nullptr;
  decltype(&cuMemSetAccess) set_access_ = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity_ = nullptr;
  decltype(&cuGetErrorName) error_name_ = nullptr;
};

}  // namespace dynemb
