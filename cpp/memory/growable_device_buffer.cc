#include "memory/growable_device_buffer.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <utility>

#include "memory/cuda_check.h"
#include "memory/cuda_driver.h"

namespace dynemb {
namespace {

Bytes RoundUp(Bytes bytes, Bytes unit) { return (bytes + unit - 1) / unit * unit; }

Status Location(CUmemAllocationProp* prop) {
  int device = 0;
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  *prop = {};
  prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop->location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  return Status();
}

}  // namespace

GrowableDeviceBuffer::GrowableDeviceBuffer(GrowableDeviceBuffer&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      reserved_(std::exchange(other.reserved_, 0)),
      committed_(std::exchange(other.committed_, 0)),
      chunks_(std::move(other.chunks_)) {}

GrowableDeviceBuffer& GrowableDeviceBuffer::operator=(GrowableDeviceBuffer&& other) noexcept {
  if (this != &other) {
    Release();
    base_ = std::exchange(other.base_, nullptr);
    reserved_ = std::exchange(other.reserved_, 0);
    committed_ = std::exchange(other.committed_, 0);
    chunks_ = std::move(other.chunks_);
  }
  return *this;
}

Status GrowableDeviceBuffer::Reserve() {
  const CudaDriver* driver = nullptr;
  DYNEMB_RETURN_IF_ERROR(CudaDriver::Get(&driver));
  size_t free = 0, total = 0;
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemGetInfo(&free, &total));
  // The whole card: more can never be mapped, and addresses cost nothing.
  Bytes wanted = RoundUp(static_cast<Bytes>(total), Bytes{1} << 30);
  CUdeviceptr base = 0;
  DYNEMB_RETURN_IF_ERROR(driver->Check(
      driver->address_reserve(&base, static_cast<size_t>(wanted), 0, 0, 0), "cuMemAddressReserve"));
  base_ = reinterpret_cast<std::byte*>(base);
  reserved_ = wanted;
  return Status();
}

Status GrowableDeviceBuffer::Commit(Bytes bytes) {
  if (bytes <= committed_) return Status();
  if (base_ == nullptr) DYNEMB_RETURN_IF_ERROR(Reserve());
  const CudaDriver* driver = nullptr;
  DYNEMB_RETURN_IF_ERROR(CudaDriver::Get(&driver));
  CUmemAllocationProp prop;
  DYNEMB_RETURN_IF_ERROR(Location(&prop));
  size_t granularity = 0;
  DYNEMB_RETURN_IF_ERROR(
      driver->Check(driver->granularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                    "cuMemGetAllocationGranularity"));
  const Bytes target = RoundUp(bytes, static_cast<Bytes>(granularity));
  const Bytes more = target - committed_;
  size_t free = 0, total = 0;
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemGetInfo(&free, &total));
  if (target > reserved_ || more + kDeviceHeadRoom > static_cast<Bytes>(free)) {
    return MemoryError("GPU memory exhausted: a table needs ", more, " more bytes, ", free, " of ",
                       total, " are free and ", kDeviceHeadRoom,
                       " stay free for XLA, which by itself takes 75 % of the card at start; set "
                       "XLA_PYTHON_CLIENT_MEM_FRACTION lower (e.g. .30) or "
                       "XLA_PYTHON_CLIENT_PREALLOCATE=false, bound the table with max_bytes, or "
                       "erase keys.");
  }

  CUmemGenericAllocationHandle handle = 0;
  DYNEMB_RETURN_IF_ERROR(
      driver->Check(driver->create(&handle, static_cast<size_t>(more), &prop, 0), "cuMemCreate"));
  const CUdeviceptr begin = reinterpret_cast<CUdeviceptr>(base_ + committed_);
  Status mapped =
      driver->Check(driver->map(begin, static_cast<size_t>(more), 0, handle, 0), "cuMemMap");
  if (!mapped.ok()) {
    driver->release(handle);
    return mapped;
  }
  CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  Status accessible = driver->Check(
      driver->set_access(begin, static_cast<size_t>(more), &access, 1), "cuMemSetAccess");
  if (!accessible.ok()) {
    driver->unmap(begin, static_cast<size_t>(more));
    driver->release(handle);
    return accessible;
  }
  chunks_.push_back({handle, more});
  committed_ = target;
  return Status();
}

void GrowableDeviceBuffer::Release() {
  const CudaDriver* driver = nullptr;
  if (base_ == nullptr || !CudaDriver::Get(&driver).ok()) return;
  Bytes end = committed_;
  while (!chunks_.empty()) {
    const Chunk chunk = chunks_.back();
    chunks_.pop_back();
    end -= chunk.bytes;
    driver->unmap(reinterpret_cast<CUdeviceptr>(base_ + end), static_cast<size_t>(chunk.bytes));
    driver->release(chunk.handle);
  }
  driver->address_free(reinterpret_cast<CUdeviceptr>(base_), static_cast<size_t>(reserved_));
  base_ = nullptr;
  reserved_ = committed_ = 0;
}

}  // namespace dynemb
