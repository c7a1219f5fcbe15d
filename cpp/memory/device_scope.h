// Which device a thread's CUDA calls mean.
#pragma once

#include <cuda_runtime_api.h>

#include "core/status.h"
#include "memory/cuda_check.h"

namespace dynemb {

// Makes a device current for this thread while it lives. XLA does so around
// handlers; a thread of Python has whichever was current, mostly device 0.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    status_ = CudaStatus(cudaGetDevice(&before_), "cudaGetDevice");
    if (!status_.ok() || before_ == device) return;
    status_ = CudaStatus(cudaSetDevice(device), "cudaSetDevice");
    changed_ = status_.ok();
  }
  ~DeviceScope() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  const Status& status() const { return status_; }

 private:
  Status status_;
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace dynemb
