// What the device knew at the end of each call, written by its last kernel into
// pinned host memory: no copy and no event to enqueue, and a look costs a load.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/status.h"
#include "core/types.h"

namespace dynemb {

// Where a call's last kernel writes.
struct SnapshotTarget {
  uint64_t* words;        // host memory, a copy of the state
  const uint64_t* state;  // device memory
  int count;              // words
  uint64_t* mark;         // host memory, written last: the number of the call
  uint64_t call;
};

// A ring: XLA enqueues at most 32 programs ahead, so 64 snapshots are never all
// outstanding in practice; when they are, one more waits for the oldest.
class Snapshots {
 public:
  Snapshots() = default;
  ~Snapshots();
  Snapshots(const Snapshots&) = delete;
  Snapshots& operator=(const Snapshots&) = delete;

  Status Init(const void* state, Bytes state_bytes);
  // The place for the snapshot of the next call, to be written on `stream`.
  Status Reserve(cudaStream_t stream, SnapshotTarget* target);
  // The oldest snapshot not yet seen, or null: none, or (unless `wait`) not written.
  Status Next(bool wait, const std::byte** state, int64_t* call);

  bool empty() const { return reserved_ == seen_; }
  int64_t outstanding() const { return reserved_ - seen_; }
  // Number of the call that Reserve was last asked for.
  int64_t last_call() const { return reserved_; }

 private:
  static constexpr int64_t kRing = 64;

  std::byte* Slot(int64_t call) const { return pinned_ + slot_bytes_ * (call % kRing); }
  Status Wait(int64_t call);

  const uint64_t* state_ = nullptr;
  Bytes state_bytes_ = 0, slot_bytes_ = 0;
  std::byte* pinned_ = nullptr;  // [kRing] of: mark, padded to 64 bytes; state
  cudaStream_t stream_ = nullptr;
  int64_t reserved_ = 0, seen_ = 0;
};

}  // namespace dynemb
