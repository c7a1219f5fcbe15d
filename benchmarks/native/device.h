// What the native benchmarks share: device memory, one stream, scratch, event timing.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "core/status.h"
#include "core/types.h"
#include "memory/cuda_check.h"
#include "table/executor.h"

namespace dynemb::bench {

// A benchmark has nobody to hand a failure to: throws std::runtime_error with its text.
void Check(const Status& status);
void Check(cudaError_t error, const char* what);
// Likewise if a benchmark measured something else than it says.
void Expect(int64_t got, int64_t wanted, const char* what);

// Uninitialised device memory.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t count) {
    void* data = nullptr;
    Check(cudaMalloc(&data, static_cast<size_t>(count) * sizeof(T)), "cudaMalloc");
    data_ = static_cast<T*>(data);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
};

struct Timing {
  double median_ms, min_ms;
  int repeats;
};
Timing Summary(std::vector<double> times_ms);

// prepare and restore are not timed; run enqueues on the device's stream. Each is
// given the number of the repetition, warm-up included.
struct Repetition {
  std::function<void(int)> prepare, run, restore;
};

// The current device, one stream on it, and memory for the scratch of calls.
class Device {
 public:
  Device();
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  cudaStream_t stream() const { return stream_; }
  Executor executor() { return {stream_, &Device::Allocate, this}; }
  // Waits for the stream, gives scratch back.
  void Finish();

  // Device time of `run` by events, in ms. Caches are flushed before, and the stream is
  // held up long enough for the host to have enqueued everything: launches are not
  // part of the time unless `run` waits.
  double DeviceMs(double hold_ms, const std::function<void()>& run);
  // Median and minimum of `repeats` after a warm-up.
  Timing Measure(int repeats, const Repetition& repetition);

 private:
  static void* Allocate(void* self, Bytes bytes);

  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
  cudaMemPool_t pool_ = nullptr;  // keeps its memory, unlike the device's default pool
  std::vector<void*> scratch_;
  DeviceArray<std::byte> flushed_;
};

// A line of the CSV whose columns PrintHeader names; the reader adds the rest.
struct Line {
  const char* kind;  // column `case`
  const char* op;
  const char* clock;  // "kernel": events; "host": wall time
  int64_t ids;        // of a call
  int dim;
  int64_t keys;  // in the table
  double load;
  double hit_rate;
  double bytes_floor;
  Timing timing;
};
void PrintHeader();
void Print(const Line& line);

}  // namespace dynemb::bench
