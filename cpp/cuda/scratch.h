// Scratch of one call, taken in one piece.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.h"
#include "table/executor.h"

namespace dynemb {

// Lay out first (Add), allocate once, then ask for addresses (At).
class ScratchPlan {
 public:
  // Place for `count` elements, 256-byte aligned; returns its offset.
  template <class T>
  size_t Add(int64_t count) {
    const size_t offset = bytes_;
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return offset;
  }
  size_t bytes() const { return bytes_; }

  Status Allocate(const Executor& exec) {
    base_ = static_cast<std::byte*>(
        exec.allocate(exec.allocator, static_cast<Bytes>(bytes_ == 0 ? 256 : bytes_)));
    if (base_ != nullptr) return Status();
    return MemoryError("XLA's allocator has no ", bytes_,
                       " bytes of scratch for this call; use smaller batches, or raise "
                       "XLA_PYTHON_CLIENT_MEM_FRACTION.");
  }
  template <class T>
  T* At(size_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }

 private:
  size_t bytes_ = 0;
  std::byte* base_ = nullptr;
};

}  // namespace dynemb
