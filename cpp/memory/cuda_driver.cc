#include "memory/cuda_driver.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <string>

#include "memory/cuda_check.h"

namespace dynemb {
namespace {

constexpr unsigned kVersion = 12000;  // of the signatures in the header

constexpr std::string_view kMayFail[] = {"cuMemAddressReserve", "cuMemCreate", "cuMemMap",
                                         "cuMemSetAccess"};

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

struct Tally {
  std::atomic<int64_t> count{0};
  std::atomic<Bytes> bytes{0};

  CUresult Took(CUresult result, Bytes more) {
    if (result == CUDA_SUCCESS) Add(1, more);
    return result;
  }
  void GaveBack(CUresult result, Bytes less) {
    if (result == CUDA_SUCCESS) Add(-1, -less);
  }

 private:
  void Add(int64_t one, Bytes more) {
    count.fetch_add(one, std::memory_order_relaxed);
    bytes.fetch_add(more, std::memory_order_relaxed);
  }
};
Tally ranges, allocations, mappings;

// The call that a test makes fail.
struct Fault {
  std::mutex mutex;
  std::atomic<bool> armed{false};
  std::string name;
  int64_t left = 0;
  CUresult error = CUDA_SUCCESS;

  // CUDA_SUCCESS: make the call.
  CUresult Of(std::string_view call) {
    if (!armed.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
    std::lock_guard<std::mutex> lock(mutex);
    if (left == 0 || call != name || --left > 0) return CUDA_SUCCESS;
    armed.store(false, std::memory_order_relaxed);
    return error;
  }
};
Fault fault;

}  // namespace

Status CudaDriver::Load() {
  DYNEMB_RETURN_IF_ERROR(Look("cuMemAddressReserve", &address_reserve_));
  DYNEMB_RETURN_IF_ERROR(Look("cuMemAddressFree", &address_free_));
  DYNEMB_RETURN_IF_ERROR(Look("cuMemCreate", &create_));
  DYNEMB_RETURN_IF_ERROR(Look("cuMemRelease", &release_));
  DYNEMB_RETURN_IF_ERROR(Look("cuMemMap", &map_));
  DYNEMB_RETURN_IF_ERROR(Look("cuMemUnmap", &unmap_));
  DYNEMB_RETURN_IF_ERROR(Look("cuMemSetAccess", &set_access_));
  DYNEMB_RETURN_IF_ERROR(Look("cuMemGetAllocationGranularity", &granularity_));
  return Look("cuGetErrorName", &error_name_);
}

Status CudaDriver::Get(const CudaDriver** driver) {
  static CudaDriver loaded;
  static const Status status = loaded.Load();
  *driver = &loaded;
  return status;
}

CUresult CudaDriver::Reserve(Bytes bytes, CUdeviceptr* base) const {
  CUresult result = fault.Of("cuMemAddressReserve");
  if (result != CUDA_SUCCESS) return result;
  return ranges.Took(address_reserve_(base, static_cast<size_t>(bytes), 0, 0, 0), bytes);
}

CUresult CudaDriver::Create(Bytes bytes, const CUmemAllocationProp& prop,
                            CUmemGenericAllocationHandle* handle) const {
  CUresult result = fault.Of("cuMemCreate");
  if (result != CUDA_SUCCESS) return result;
  return allocations.Took(create_(handle, static_cast<size_t>(bytes), &prop, 0), bytes);
}

CUresult CudaDriver::Map(CUdeviceptr begin, Bytes bytes,
                         CUmemGenericAllocationHandle handle) const {
  CUresult result = fault.Of("cuMemMap");
  if (result != CUDA_SUCCESS) return result;
  return mappings.Took(map_(begin, static_cast<size_t>(bytes), 0, handle, 0), bytes);
}

CUresult CudaDriver::SetAccess(CUdeviceptr begin, Bytes bytes,
                               const CUmemAccessDesc& access) const {
  CUresult result = fault.Of("cuMemSetAccess");
  if (result != CUDA_SUCCESS) return result;
  return set_access_(begin, static_cast<size_t>(bytes), &access, 1);
}

CUresult CudaDriver::Granularity(const CUmemAllocationProp& prop, size_t* bytes) const {
  return granularity_(bytes, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
}

void CudaDriver::Unmap(CUdeviceptr begin, Bytes bytes) const {
  mappings.GaveBack(unmap_(begin, static_cast<size_t>(bytes)), bytes);
}

void CudaDriver::Release(CUmemGenericAllocationHandle handle, Bytes bytes) const {
  allocations.GaveBack(release_(handle), bytes);
}

void CudaDriver::Free(CUdeviceptr base, Bytes bytes) const {
  ranges.GaveBack(address_free_(base, static_cast<size_t>(bytes)), bytes);
}

const char* CudaDriver::ErrorName(CUresult result) const {
  const char* name = nullptr;
  return error_name_(result, &name) == CUDA_SUCCESS ? name : "an unknown error";
}

Status CudaDriver::Check(CUresult result, const char* what) const {
  if (result == CUDA_SUCCESS) return Status();
  return MakeStatus(StatusCode::kDevice, what, " failed: ", ErrorName(result));
}

DriverUse CudaDriver::Use() const {
  return {ranges.count, allocations.count, mappings.count,
          ranges.bytes, allocations.bytes, mappings.bytes};
}

Status CudaDriver::FailCall(std::string_view name, int64_t nth, CUresult error, int64_t* left) {
  if (std::find(std::begin(kMayFail), std::end(kMayFail), name) == std::end(kMayFail) || nth < 0) {
    return InvalidArgument("fail_driver_call takes cuMemAddressReserve, cuMemCreate, cuMemMap or ",
                           "cuMemSetAccess and a number from 0, got ", name, " and ", nth, ".");
  }
  std::lock_guard<std::mutex> lock(fault.mutex);
  *left = fault.left;
  fault.name = name;
  fault.left = nth;
  fault.error = error;
  fault.armed.store(nth > 0, std::memory_order_relaxed);
  return Status();
}

}  // namespace dynemb
