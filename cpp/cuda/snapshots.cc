#include "cuda/snapshots.h"

#include <atomic>
#include <cstring>
#include <thread>

#include "memory/cuda_check.h"

namespace dynemb {
namespace {

constexpr Bytes kMarkBytes = 64;

bool IsWritten(std::byte* slot, int64_t call) {
  std::atomic_ref<uint64_t> mark(*reinterpret_cast<uint64_t*>(slot));
  return mark.load(std::memory_order_acquire) == static_cast<uint64_t>(call);
}

}  // namespace

Snapshots::~Snapshots() {
  if (pinned_ != nullptr) cudaFreeHost(pinned_);
}

Status Snapshots::Init(const void* state, Bytes state_bytes) {
  state_ = static_cast<const uint64_t*>(state);
  state_bytes_ = state_bytes;
  slot_bytes_ = kMarkBytes + (state_bytes + 63) / 64 * 64;
  void* pinned = nullptr;
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaHostAlloc(&pinned, static_cast<size_t>(slot_bytes_ * kRing),
                                            cudaHostAllocPortable | cudaHostAllocMapped));
  pinned_ = static_cast<std::byte*>(pinned);
  std::memset(pinned_, 0, static_cast<size_t>(slot_bytes_ * kRing));
  return Status();
}

Status Snapshots::Reserve(cudaStream_t stream, SnapshotTarget* target) {
  if (reserved_ - seen_ == kRing) {
    return MakeStatus(StatusCode::kDevice, "snapshots are full; poll before each call");
  }
  stream_ = stream;
  const int64_t call = ++reserved_;
  std::byte* slot = Slot(call);
  *target = {reinterpret_cast<uint64_t*>(slot + kMarkBytes), state_,
             static_cast<int>(state_bytes_ / static_cast<Bytes>(sizeof(uint64_t))),
             reinterpret_cast<uint64_t*>(slot), static_cast<uint64_t>(call)};
  return Status();
}

Status Snapshots::Wait(int64_t call) {
  for (int turn = 1; !IsWritten(Slot(call), call); ++turn) {
    if (turn % 256 != 0) continue;
    // A device that has failed will never write.
    const cudaError_t state = cudaStreamQuery(stream_);
    // Some runtimes keep "not ready" as the last error, which a later check would find.
    if (state == cudaErrorNotReady) (void)cudaGetLastError();
    if (state != cudaErrorNotReady && !IsWritten(Slot(call), call)) {
      return MakeStatus(StatusCode::kDevice,
                        "a call on the GPU has failed: ", cudaGetErrorString(state));
    }
    std::this_thread::yield();
  }
  return Status();
}

Status Snapshots::Next(bool wait, const std::byte** state, int64_t* call) {
  *state = nullptr;
  if (empty()) return Status();
  const int64_t next = seen_ + 1;
  if (!IsWritten(Slot(next), next)) {
    if (!wait && reserved_ - seen_ < kRing) return Status();
    DYNEMB_RETURN_IF_ERROR(Wait(next));
  }
  seen_ = next;
  *call = next;
  *state = Slot(next) + kMarkBytes;
  return Status();
}

}  // namespace dynemb
