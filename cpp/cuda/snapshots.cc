#include "cuda/snapshots.h"

#include "memory/cuda_check.h"

namespace dynemb {

Snapshots::~Snapshots() {
  for (Slot& slot : slots_) {
    if (slot.event != nullptr) cudaEventDestroy(slot.event);
  }
  if (pinned_ != nullptr) cudaFreeHost(pinned_);
}

Status Snapshots::Init(Bytes state_bytes) {
  state_bytes_ = (state_bytes + 63) / 64 * 64;
  void* pinned = nullptr;
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMallocHost(&pinned, static_cast<size_t>(state_bytes_ * kRing)));
  pinned_ = static_cast<std::byte*>(pinned);
  slots_.resize(kRing);
  for (Slot& slot : slots_) {
    DYNEMB_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&slot.event, cudaEventDisableTiming));
  }
  return Status();
}

Status Snapshots::Take(const void* state, cudaStream_t stream, int64_t call) {
  // Full: the caller has polled, so the oldest copies are still being made.
  if (taken_ - seen_ == kRing) {
    return MakeStatus(StatusCode::kDevice, "snapshots are full; poll before each call");
  }
  Slot& slot = slots_[static_cast<size_t>(taken_ % kRing)];
  slot.call = call;
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(pinned_ + state_bytes_ * (taken_ % kRing), state,
                                              static_cast<size_t>(state_bytes_),
                                              cudaMemcpyDeviceToHost, stream));
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaEventRecord(slot.event, stream));
  ++taken_;
  return Status();
}

Status Snapshots::Next(bool wait, const std::byte** state, int64_t* call) {
  *state = nullptr;
  if (empty()) return Status();
  Slot& slot = slots_[static_cast<size_t>(seen_ % kRing)];
  const bool full = taken_ - seen_ == kRing;
  cudaError_t result = wait || full ? cudaEventSynchronize(slot.event) : cudaEventQuery(slot.event);
  if (result == cudaErrorNotReady) return Status();
  DYNEMB_RETURN_IF_ERROR(CudaStatus(result, "cudaEventQuery"));
  *state = pinned_ + state_bytes_ * (seen_ % kRing);
  *call = slot.call;
  ++seen_;
  return Status();
}

}  // namespace dynemb
