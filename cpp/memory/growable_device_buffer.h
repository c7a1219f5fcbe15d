// GrowableHostBuffer for device memory, by CUDA's virtual memory management.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/types.h"

namespace dynemb {

class CudaDriver;

// Whose memory it is, for messages: "table 'items'". The buffers of one table share it.
struct MemoryOwner {
  std::string name;
  Bytes budget;         // max_bytes; negative: none
  Bytes committed = 0;  // of all its buffers
};

// Reserves addresses once and maps physical chunks behind each other, so the base
// address never changes and growth copies nothing. Mapping does not wait for the
// device. New bytes are whatever they were. Owns every handle it made; moves,
// never copies. Not thread-safe. Releasing while kernels use the bytes is the
// caller's mistake.
class GrowableDeviceBuffer {
 public:
  // `owner` outlives the buffer. `share` of the card is the most that it can ever
  // need: so many addresses are reserved.
  GrowableDeviceBuffer(MemoryOwner* owner, double share) : owner_(owner), share_(share) {}
  ~GrowableDeviceBuffer() { Release(); }
  GrowableDeviceBuffer(GrowableDeviceBuffer&& other) noexcept;
  GrowableDeviceBuffer& operator=(GrowableDeviceBuffer&& other) noexcept;
  GrowableDeviceBuffer(const GrowableDeviceBuffer&) = delete;
  GrowableDeviceBuffer& operator=(const GrowableDeviceBuffer&) = delete;

  // Makes at least `bytes` usable on the current device. kMemory with the numbers
  // when the card has no room, head-room for XLA included; then unchanged.
  Status Commit(Bytes bytes);

  // Gives memory behind `bytes` back, as far as chunks can be cut: the one in which they
  // end is replaced by a smaller one where there is room for both. The device is idle.
  void Shrink(Bytes bytes);

  std::byte* data() const { return base_; }
  Bytes committed() const { return committed_; }

 private:
  struct Chunk {
    unsigned long long handle;  // CUmemGenericAllocationHandle
    Bytes bytes;
  };
  struct Shortage;

  Status Reserve(const CudaDriver& driver, Bytes at_least, const Shortage& shortage);
  void PopChunk(const CudaDriver& driver);
  void CutLastChunk(const CudaDriver& driver, Bytes target);
  void Release();

  MemoryOwner* owner_;
  double share_;
  std::byte* base_ = nullptr;
  Bytes reserved_ = 0;
  Bytes committed_ = 0;
  std::vector<Chunk> chunks_;
};

// With less left, XLA cannot compile new programs.
inline constexpr Bytes kDeviceHeadRoom = Bytes{2} << 30;

}  // namespace dynemb
