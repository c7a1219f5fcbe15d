#include <cuda_runtime.h>

#include <vector>

#include "bare_index.h"
#include "cuda/device_ops.cuh"
#include "keys.cuh"

namespace dynemb::bench {
namespace {

__device__ int64_t GlobalThread() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

__global__ void __launch_bounds__(kThreads) PlaceKernel(IndexView view, int64_t keys) {
  const int64_t i = GlobalThread();
  if (i >= keys) return;
  const uint64_t number = static_cast<uint64_t>(i);
  PlaceAbsentOnDevice(view, Entry{KeyNumber(number), number});
}

__global__ void __launch_bounds__(kThreads)
    FindRowsKernel(IndexView view, const Key* keys, int64_t n, int64_t* rows) {
  const int64_t i = GlobalThread();
  if (i < n) rows[i] = FindRowOnDevice(view, HashKey(keys[i]), keys[i]);
}

__global__ void __launch_bounds__(kThreads)
    DrawKeysKernel(Shuffle shuffle, Draw draw, int64_t n, Key* keys) {
  const int64_t i = GlobalThread();
  if (i >= n) return;
  const uint64_t place = static_cast<uint64_t>(i);
  keys[i] = KeyNumber(draw.half && i % 2 == 1 ? draw.absent + place
                                              : shuffle[static_cast<uint64_t>(draw.first) + place]);
}

__global__ void __launch_bounds__(kThreads)
    NumberedKeysKernel(uint64_t first, int64_t n, Key* keys) {
  const int64_t i = GlobalThread();
  if (i < n) keys[i] = KeyNumber(first + static_cast<uint64_t>(i));
}

}  // namespace

BareIndex::BareIndex(Device& device, uint64_t num_buckets, int64_t keys)
    : device_(device), table_(TableConfig{}), view_(1) {
  Check(table_.Grow(device.stream(), Room{num_buckets, 1}, view_.data()));
  PlaceKernel<<<Blocks(keys), kThreads, 0, device.stream()>>>(table_.view().index, keys);
  Check(cudaGetLastError(), "PlaceKernel");
  device.Finish();
}

BareIndex::~BareIndex() { cudaStreamSynchronize(device_.stream()); }

void BareIndex::FindRows(const Key* keys, int64_t n, int64_t* rows) {
  FindRowsKernel<<<Blocks(n), kThreads, 0, device_.stream()>>>(table_.view().index, keys, n, rows);
  Check(cudaGetLastError(), "FindRowsKernel");
}

void BareIndex::Double() {
  const Room now = table_.room();
  Check(table_.Grow(device_.stream(), Room{now.num_buckets * 2, now.row_capacity}, view_.data()));
}

void DrawKeys(Device& device, const Draw& draw, int64_t n, Key* keys) {
  DrawKeysKernel<<<Blocks(n), kThreads, 0, device.stream()>>>(Shuffle(draw.held), draw, n, keys);
  Check(cudaGetLastError(), "DrawKeysKernel");
}

void NumberedKeys(Device& device, uint64_t first, int64_t n, Key* keys) {
  NumberedKeysKernel<<<Blocks(n), kThreads, 0, device.stream()>>>(first, n, keys);
  Check(cudaGetLastError(), "NumberedKeysKernel");
}

void CheckRows(Device& device, const Draw& draw, int64_t n, const int64_t* rows) {
  std::vector<int64_t> got(static_cast<size_t>(n));
  device.Finish();
  Check(cudaMemcpy(got.data(), rows, got.size() * sizeof(int64_t), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  const Shuffle shuffle(draw.held);
  for (int64_t i = 0; i < n; ++i) {
    const bool absent = draw.half && i % 2 == 1;
    const uint64_t number = absent ? 0 : shuffle[static_cast<uint64_t>(draw.first + i)];
    Expect(got[static_cast<size_t>(i)], absent ? -1 : static_cast<int64_t>(number), "row of a key");
  }
}

}  // namespace dynemb::bench
