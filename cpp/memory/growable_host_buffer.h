// A buffer that grows and shrinks in place.
#pragma once

#include <cstddef>

#include "core/status.h"
#include "core/types.h"

namespace dynemb {

// Reserves address space once and commits it piece by piece, so the base
// address never changes and growth copies nothing. New bytes read as zero.
// Owns its mapping; moves, never copies. Not thread-safe.
class GrowableHostBuffer {
 public:
  GrowableHostBuffer() = default;
  ~GrowableHostBuffer();
  GrowableHostBuffer(GrowableHostBuffer&& other) noexcept;
  GrowableHostBuffer& operator=(GrowableHostBuffer&& other) noexcept;
  GrowableHostBuffer(const GrowableHostBuffer&) = delete;
  GrowableHostBuffer& operator=(const GrowableHostBuffer&) = delete;

  // Makes at least `bytes` usable. kMemory with the numbers when the machine has
  // no room; the buffer is then unchanged.
  Status Commit(Bytes bytes);

  // Gives memory behind the first `bytes` back to the system, in whole pages. Bytes that
  // are committed again read as zero, but for the rest of the last page.
  void Shrink(Bytes bytes);

  std::byte* data() const { return base_; }
  Bytes committed() const { return committed_; }

 private:
  Status Reserve(Bytes at_least);
  void Release();

  std::byte* base_ = nullptr;
  Bytes reserved_ = 0;
  Bytes committed_ = 0;
};

}  // namespace dynemb
