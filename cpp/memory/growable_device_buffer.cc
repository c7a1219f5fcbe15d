#include "memory/growable_device_buffer.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "memory/cuda_check.h"
#include "memory/cuda_driver.h"

namespace dynemb {
namespace {

constexpr Bytes kRangeUnit = Bytes{1} << 30;
// Of the 2^47 bytes of addresses that a process has, host memory included.
constexpr Bytes kMostReserved = Bytes{96} << 40;

Bytes RoundUp(Bytes bytes, Bytes unit) { return (bytes + unit - 1) / unit * unit; }

CUdeviceptr Address(const std::byte* data) { return reinterpret_cast<CUdeviceptr>(data); }

Status Location(CUmemAllocationProp* prop) {
  int device = 0;
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  *prop = {};
  prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop->location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  return Status();
}

}  // namespace

// The numbers of a request, for the message when it fails.
struct GrowableDeviceBuffer::Shortage {
  const MemoryOwner& owner;
  Bytes more, free, total;

  // `cause` in the middle of a sentence.
  template <class... Cause>
  Status Because(const Cause&... cause) const {
    std::string budget;
    if (owner.budget >= 0) budget = " of max_bytes=" + std::to_string(owner.budget);
    return MemoryError(
        "GPU memory exhausted: ", owner.name, " holds ", owner.committed, " bytes", budget,
        " and needs ", more, " more, but ", cause..., "; ", free, " of ", total,
        " bytes are free, ", kDeviceHeadRoom, " of them stay free for XLA, ",
        total - free - owner.committed,
        " are XLA's pool (75 % of the card at start unless told otherwise), other tables and other "
        "programs. Set XLA_PYTHON_CLIENT_MEM_FRACTION lower (e.g. .30) or "
        "XLA_PYTHON_CLIENT_PREALLOCATE=false, bound tables with max_bytes, or erase keys.");
  }

  // What the driver answered to the call `what`.
  Status Of(const CudaDriver& driver, CUresult result, const char* what) const {
    if (result != CUDA_ERROR_OUT_OF_MEMORY) return driver.Check(result, what);
    return Because(what, " failed with ", driver.ErrorName(result));
  }
};

GrowableDeviceBuffer::GrowableDeviceBuffer(GrowableDeviceBuffer&& other) noexcept
    : owner_(other.owner_),
      share_(other.share_),
      base_(std::exchange(other.base_, nullptr)),
      reserved_(std::exchange(other.reserved_, 0)),
      committed_(std::exchange(other.committed_, 0)),
      chunks_(std::exchange(other.chunks_, {})) {}

GrowableDeviceBuffer& GrowableDeviceBuffer::operator=(GrowableDeviceBuffer&& other) noexcept {
  if (this != &other) {
    Release();
    owner_ = other.owner_;
    share_ = other.share_;
    base_ = std::exchange(other.base_, nullptr);
    reserved_ = std::exchange(other.reserved_, 0);
    committed_ = std::exchange(other.committed_, 0);
    chunks_ = std::exchange(other.chunks_, {});
  }
  return *this;
}

Status GrowableDeviceBuffer::Reserve(const CudaDriver& driver, Bytes at_least,
                                     const Shortage& shortage) {
  const Bytes most = static_cast<Bytes>(share_ * static_cast<double>(shortage.total));
  // Addresses are many, not endless: hundreds of tables may have to do with less.
  const Bytes left = kMostReserved - driver.Use().reserved_bytes;
  const Bytes wanted = RoundUp(std::max(std::min(most, left / 64), at_least), kRangeUnit);
  if (wanted > left) {
    return shortage.Because("tables have reserved ", driver.Use().reserved_bytes,
                            " bytes of addresses, close some");
  }
  CUdeviceptr base = 0;
  const CUresult result = driver.Reserve(wanted, &base);
  if (result != CUDA_SUCCESS) return shortage.Of(driver, result, "cuMemAddressReserve");
  base_ = reinterpret_cast<std::byte*>(base);
  reserved_ = wanted;
  return Status();
}

Status GrowableDeviceBuffer::Commit(Bytes bytes) {
  if (bytes <= committed_) return Status();
  const CudaDriver* driver = nullptr;
  DYNEMB_RETURN_IF_ERROR(CudaDriver::Get(&driver));
  CUmemAllocationProp prop;
  DYNEMB_RETURN_IF_ERROR(Location(&prop));
  size_t granularity = 0;
  DYNEMB_RETURN_IF_ERROR(
      driver->Check(driver->Granularity(prop, &granularity), "cuMemGetAllocationGranularity"));
  const Bytes target = RoundUp(bytes, static_cast<Bytes>(granularity));
  const Bytes more = target - committed_;
  size_t free = 0, total = 0;
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemGetInfo(&free, &total));
  const Shortage shortage{*owner_, more, static_cast<Bytes>(free), static_cast<Bytes>(total)};
  if (more + kDeviceHeadRoom > shortage.free) return shortage.Because("the card has no room");
  if (base_ == nullptr) DYNEMB_RETURN_IF_ERROR(Reserve(*driver, target, shortage));
  if (target > reserved_) {
    return shortage.Because("its ", reserved_, " bytes of addresses are used up (",
                            driver->Use().reserved_bytes, " are reserved by all tables)");
  }

  chunks_.reserve(chunks_.size() + 1);  // so that nothing fails once the handle exists
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = driver->Create(more, prop, &handle);
  if (result != CUDA_SUCCESS) return shortage.Of(*driver, result, "cuMemCreate");
  const CUdeviceptr begin = Address(base_ + committed_);
  result = driver->Map(begin, more, handle);
  if (result != CUDA_SUCCESS) {
    driver->Release(handle, more);
    return shortage.Of(*driver, result, "cuMemMap");
  }
  result = driver->SetAccess(begin, more, {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  if (result != CUDA_SUCCESS) {
    driver->Unmap(begin, more);
    driver->Release(handle, more);
    return shortage.Of(*driver, result, "cuMemSetAccess");
  }
  chunks_.push_back({handle, more});
  committed_ = target;
  owner_->committed += more;
  return Status();
}

void GrowableDeviceBuffer::Shrink(Bytes bytes) {
  const CudaDriver* driver = nullptr;
  CUmemAllocationProp prop;
  size_t granularity = 0;
  if (base_ == nullptr || !CudaDriver::Get(&driver).ok() || !Location(&prop).ok() ||
      driver->Granularity(prop, &granularity) != CUDA_SUCCESS) {
    return;
  }
  const Bytes target = RoundUp(bytes, static_cast<Bytes>(granularity));
  while (!chunks_.empty() && committed_ - chunks_.back().bytes >= target) PopChunk(*driver);
  if (committed_ > target) CutLastChunk(*driver, target);
}

void GrowableDeviceBuffer::PopChunk(const CudaDriver& driver) {
  const Chunk chunk = chunks_.back();
  chunks_.pop_back();
  committed_ -= chunk.bytes;
  owner_->committed -= chunk.bytes;
  driver.Unmap(Address(base_ + committed_), chunk.bytes);
  driver.Release(chunk.handle, chunk.bytes);
}

// What stays is copied to a new chunk, which is mapped behind the old one first and then in
// its place. Whatever fails on the way, the old one stays.
void GrowableDeviceBuffer::CutLastChunk(const CudaDriver& driver, Bytes target) {
  CUmemAllocationProp prop;
  if (!Location(&prop).ok()) return;
  Chunk& last = chunks_.back();
  const Bytes start = committed_ - last.bytes, kept = target - start;
  if (committed_ + kept > reserved_) return;
  const CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle = 0;
  if (driver.Create(kept, prop, &handle) != CUDA_SUCCESS) return;
  const CUdeviceptr old = Address(base_ + start), behind = Address(base_ + committed_);
  bool copied = false;
  if (driver.Map(behind, kept, handle) == CUDA_SUCCESS) {
    copied = driver.SetAccess(behind, kept, access) == CUDA_SUCCESS &&
             cudaMemcpy(base_ + committed_, base_ + start, static_cast<size_t>(kept),
                        cudaMemcpyDeviceToDevice) == cudaSuccess &&
             cudaDeviceSynchronize() == cudaSuccess;
    driver.Unmap(behind, kept);
  }
  if (!copied) {
    driver.Release(handle, kept);
    return;
  }
  driver.Unmap(old, last.bytes);
  Bytes mapped = kept;
  bool is_new = driver.Map(old, kept, handle) == CUDA_SUCCESS;
  if (is_new && driver.SetAccess(old, kept, access) != CUDA_SUCCESS) {
    driver.Unmap(old, kept);
    is_new = false;
  }
  if (!is_new) {  // back to the old one, which was there a moment ago
    mapped = last.bytes;
    driver.Release(handle, kept);
    if (driver.Map(old, mapped, last.handle) == CUDA_SUCCESS) {
      driver.SetAccess(old, mapped, access);
    }
    return;
  }
  driver.Release(last.handle, last.bytes);
  owner_->committed -= last.bytes - kept;
  committed_ = target;
  last = {handle, kept};
}

void GrowableDeviceBuffer::Release() {
  const CudaDriver* driver = nullptr;
  if (base_ == nullptr || !CudaDriver::Get(&driver).ok()) return;
  owner_->committed -= committed_;
  Bytes end = committed_;
  while (!chunks_.empty()) {
    const Chunk chunk = chunks_.back();
    chunks_.pop_back();
    end -= chunk.bytes;
    driver->Unmap(Address(base_ + end), chunk.bytes);
    driver->Release(chunk.handle, chunk.bytes);
  }
  driver->Free(Address(base_), reserved_);
  base_ = nullptr;
  reserved_ = committed_ = 0;
}

}  // namespace dynemb
