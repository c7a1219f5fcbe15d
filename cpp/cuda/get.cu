// Rows and optimizer state of given keys, from the device to the host.
#include <cuda_runtime.h>

#include <memory>

#include "cuda/cuda_backend.h"
#include "cuda/device_ops.cuh"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

// A warp a key.
__global__ void __launch_bounds__(kThreads)
    GetKernel(const TableView* views, int32_t table, const Key* keys, int64_t count, uint8_t* found,
              float* rows, float* state) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (i >= count) return;
  const TableView& view = views[table];
  const RowLayout& layout = view.layout;
  const Key key = keys[i];
  const int64_t row = FindRowOnDevice(view.index, HashKey(key), key);
  if (Lane() == 0) found[i] = row >= 0;
  for (int column = Lane(); column < layout.dim; column += 32) {
    float value = view.missing_value;
    if (row >= 0) {
      value = layout.LoadColumn(view.Row(row), column);
    } else if (view.missing_is_initial) {
      const RowInitializer& init = view.initializer;
      const PhiloxBlock random =
          Philox4x32({{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32),
                       static_cast<uint32_t>(column / 4), 0u}},
                     static_cast<uint32_t>(init.stream), static_cast<uint32_t>(init.stream >> 32));
      value = InitialValue(init, random.word[column % 4]);
    }
    if (layout.type != RowType::kFloat32) {
      value = FloatOf16(layout.type, Nearest16(layout.type, value));
    }
    rows[i * layout.dim + column] = value;
  }
  float* to = state + i * layout.StateFloats();
  for (int v = 0; v < layout.vectors; ++v) {
    for (int column = Lane(); column < layout.dim; column += 32) {
      to[int64_t{v} * layout.dim + column] =
          row >= 0 ? view.Row(row)[layout.VectorOffset(v) + column] : 0.0f;
    }
  }
  for (int k = Lane(); k < layout.scalars; k += 32) {
    to[int64_t{layout.vectors} * layout.dim + k] =
        row >= 0 ? view.Row(row)[layout.ScalarOffset() + k] : 0.0f;
  }
}

struct CudaFree {
  void operator()(void* pointer) const { cudaFree(pointer); }
};

}  // namespace

Status CudaBackend::Get(const GetBatch& batch) {
  std::lock_guard<std::mutex> lock(mutex_);
  DYNEMB_RETURN_IF_ERROR(ReadState());
  if (batch.count == 0) return Status();
  const RowLayout& layout = table(batch.table).layout();
  const size_t count = static_cast<size_t>(batch.count);
  const size_t key_bytes = count * sizeof(Key);
  const size_t row_bytes = count * static_cast<size_t>(layout.dim) * sizeof(float);
  const size_t state_bytes = count * static_cast<size_t>(layout.StateFloats()) * sizeof(float);
  void* block = nullptr;
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMalloc(&block, key_bytes + row_bytes + state_bytes + count));
  std::unique_ptr<void, CudaFree> owner(block);
  std::byte* base = static_cast<std::byte*>(block);
  Key* keys = reinterpret_cast<Key*>(base);
  float* rows = reinterpret_cast<float*>(base + key_bytes);
  float* state = reinterpret_cast<float*>(base + key_bytes + row_bytes);
  uint8_t* found = reinterpret_cast<uint8_t*>(base + key_bytes + row_bytes + state_bytes);
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemcpy(keys, batch.keys, key_bytes, cudaMemcpyHostToDevice));
  const unsigned blocks = Blocks(count * 32);
  GetKernel<<<blocks, kThreads>>>(views_, batch.table, keys, batch.count, found, rows, state);
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemcpy(batch.rows, rows, row_bytes, cudaMemcpyDeviceToHost));
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemcpy(batch.state, state, state_bytes, cudaMemcpyDeviceToHost));
  return CudaStatus(cudaMemcpy(batch.found, found, count, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

}  // namespace dynemb
