#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <string>

#include "device.h"

namespace dynemb::bench {
namespace {

constexpr Bytes kFlushBytes = Bytes{256} << 20;  // several times the L2 cache
constexpr int kWarmUp = 3;
constexpr double kHoldMs = 0.5;

__global__ void HoldKernel(int64_t nanoseconds) {
  int64_t start = 0, now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

}  // namespace

void Check(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

void Check(cudaError_t error, const char* what) { Check(CudaStatus(error, what)); }

void Expect(int64_t got, int64_t wanted, const char* what) {
  if (got == wanted) return;
  throw std::runtime_error(std::string(what) + ": got " + std::to_string(got) + ", expected " +
                           std::to_string(wanted));
}

Timing Summary(std::vector<double> times_ms) {
  std::sort(times_ms.begin(), times_ms.end());
  const size_t count = times_ms.size();
  const double median = (times_ms[(count - 1) / 2] + times_ms[count / 2]) / 2;
  return {median, times_ms.front(), static_cast<int>(count)};
}

Device::Device() : flushed_(kFlushBytes) {
  int device = 0;
  Check(cudaGetDevice(&device), "cudaGetDevice");
  Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  Check(cudaEventCreate(&start_), "cudaEventCreate");
  Check(cudaEventCreate(&stop_), "cudaEventCreate");
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = cudaMemLocationTypeDevice;
  props.location.id = device;
  Check(cudaMemPoolCreate(&pool_, &props), "cudaMemPoolCreate");
  uint64_t keep = std::numeric_limits<uint64_t>::max();
  Check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep),
        "cudaMemPoolSetAttribute");
}

Device::~Device() {
  cudaDeviceSynchronize();
  for (void* memory : scratch_) cudaFreeAsync(memory, stream_);
  cudaStreamSynchronize(stream_);
  cudaMemPoolDestroy(pool_);
  cudaEventDestroy(start_);
  cudaEventDestroy(stop_);
  cudaStreamDestroy(stream_);
}

void* Device::Allocate(void* self, Bytes bytes) {
  Device& device = *static_cast<Device*>(self);
  void* memory = nullptr;
  const cudaError_t error =
      cudaMallocFromPoolAsync(&memory, static_cast<size_t>(bytes), device.pool_, device.stream_);
  if (error != cudaSuccess) return nullptr;
  device.scratch_.push_back(memory);
  return memory;
}

void Device::Finish() {
  for (void* memory : scratch_) Check(cudaFreeAsync(memory, stream_), "cudaFreeAsync");
  scratch_.clear();
  Check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

double Device::DeviceMs(double hold_ms, const std::function<void()>& run) {
  Check(cudaMemsetAsync(flushed_.data(), 1, static_cast<size_t>(kFlushBytes), stream_),
        "cudaMemsetAsync");
  HoldKernel<<<1, 1, 0, stream_>>>(static_cast<int64_t>(hold_ms * 1e6));
  Check(cudaEventRecord(start_, stream_), "cudaEventRecord");
  run();
  Check(cudaEventRecord(stop_, stream_), "cudaEventRecord");
  Finish();
  float ms = 0;
  Check(cudaEventElapsedTime(&ms, start_, stop_), "cudaEventElapsedTime");
  return static_cast<double>(ms);
}

Timing Device::Measure(int repeats, const Repetition& repetition) {
  std::vector<double> times;
  for (int r = 0; r < kWarmUp + repeats; ++r) {
    repetition.prepare(r);
    const double ms = DeviceMs(kHoldMs, [&] { repetition.run(r); });
    if (r >= kWarmUp) times.push_back(ms);
    if (repetition.restore) repetition.restore(r);
  }
  return Summary(std::move(times));
}

void PrintHeader() {
  std::printf(
      "case,variant,op,tables,n,dim,keys_per_table,skew,load,hit_rate,dtype,step_ms,min_ms,"
      "bytes_floor,repeats,timing\n");
}

void Print(const Line& line) {
  std::printf("%s,native,%s,1,%lld,%d,%lld,uniform,%.4f,%.2f,float32,%.5f,%.5f,%.0f,%d,%s\n",
              line.kind, line.op, static_cast<long long>(line.ids), line.dim,
              static_cast<long long>(line.keys), line.load, line.hit_rate, line.timing.median_ms,
              line.timing.min_ms, line.bytes_floor, line.timing.repeats, line.clock);
  std::fflush(stdout);
}

}  // namespace dynemb::bench
