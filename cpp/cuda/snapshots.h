// Copies of the device's state, one after each call, in pinned memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/status.h"
#include "core/types.h"

namespace dynemb {

// A ring: XLA enqueues at most 32 programs ahead, so 64 copies are never all
// waiting in practice; when they are, taking one more waits for the oldest.
class Snapshots {
 public:
  Snapshots() = default;
  ~Snapshots();
  Snapshots(const Snapshots&) = delete;
  Snapshots& operator=(const Snapshots&) = delete;

  Status Init(Bytes state_bytes);
  // Enqueues a copy of `state`, whose number is the number of the call.
  Status Take(const void* state, cudaStream_t stream, int64_t call);
  // The oldest copy not yet seen, or null: none, or (unless `wait`) none finished.
  Status Next(bool wait, const std::byte** state, int64_t* call);

  bool empty() const { return taken_ == seen_; }

 private:
  static constexpr int64_t kRing = 64;
  struct Slot {
    cudaEvent_t event = nullptr;
    int64_t call = 0;
  };

  Bytes state_bytes_ = 0;
  std::byte* pinned_ = nullptr;
  std::vector<Slot> slots_;
  int64_t taken_ = 0, seen_ = 0;
};

}  // namespace dynemb
