// Tables that refuse new keys when they are full take those that come first. Atomics have
// numbered the new keys of a call by chance, and numbers behind the free rows are refused:
// in a deterministic group they are numbered anew, by the first id of each key.
#include <cuda_runtime.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cub/device/device_scan.cuh>
#include <vector>

#include "cuda/call_state.cuh"
#include "cuda/cuda_backend.h"
#include "cuda/scratch.h"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

// The ids of a table, from its first one on.
struct NewKeyOrder {
  int64_t* rows;           // [num_ids]: the row array
  uint32_t* first_ids;     // [num_ids], by the id that brings a key: ~ its first id, or 0
  uint32_t* firsts_ahead;  // [num_ids]: ids before this one that are the first of a new key
  int64_t first_id;
  uint32_t num_ids;

  // The id that brings the key of id i, or num_ids: it is not new. A call that is not done
  // has left anything in the row array.
  __device__ uint32_t BringerOf(uint32_t i) const {
    const int64_t code = rows[i];
    if (IsNewRow(code)) return i;
    if (!IsSameKey(code)) return num_ids;
    const int64_t bringer = kSameKey - code - first_id;
    return bringer >= 0 && bringer < num_ids ? static_cast<uint32_t>(bringer) : num_ids;
  }
  __device__ bool IsFirst(uint32_t i) const {
    const uint32_t bringer = BringerOf(i);
    return bringer < num_ids && first_ids[bringer] == ~i;
  }
};

__global__ void __launch_bounds__(kThreads)
    FirstOfNewKeysKernel(const GroupState* group, NewKeyOrder order) {
  if (!Runs(*group)) return;
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= order.num_ids) return;
  const uint32_t bringer = order.BringerOf(i);
  if (bringer == order.num_ids) return;
  uint32_t* first = order.first_ids + bringer;
  if (*static_cast<volatile uint32_t*>(first) < ~i) atomicMax(first, ~i);
}

struct IsFirstOfNewKey {
  NewKeyOrder order;
  __device__ uint32_t operator()(uint32_t i) const { return order.IsFirst(i) ? 1 : 0; }
};

__global__ void __launch_bounds__(kThreads)
    NumberNewKeysKernel(const GroupState* group, NewKeyOrder order) {
  if (!Runs(*group)) return;
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= order.num_ids || !IsNewRow(order.rows[i])) return;
  order.rows[i] = kNewRow - int64_t{order.firsts_ahead[~order.first_ids[i]]};
}

cudaError_t ScanFirsts(const NewKeyOrder& order, void* temporary, size_t* bytes,
                       cudaStream_t stream) {
  using Ids = thrust::counting_iterator<uint32_t>;
  const thrust::transform_iterator<IsFirstOfNewKey, Ids, uint32_t, uint32_t> flags(
      Ids(0), IsFirstOfNewKey{order});
  return cub::DeviceScan::ExclusiveSum(temporary, *bytes, flags, order.firsts_ahead, order.num_ids,
                                       stream);
}

}  // namespace

Status CudaBackend::OrderNewKeys(const Executor& exec, const DeviceLookup& call) {
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  for (int t = 0; t < call.tables.count; ++t) {
    const TableConfig& config = configs()[static_cast<size_t>(call.tables.table[t])];
    const int64_t num_ids = call.ids_of_table[static_cast<size_t>(t)];
    // Bounded tables take new keys in order anyway.
    const bool may_refuse = config.on_full == OnFull::kDrop && config.score == ScoreKind::kNone;
    if (!config.deterministic || !may_refuse || num_ids == 0) continue;
    NewKeyOrder order{call.scratch.rows + call.tables.first_id[t], nullptr, nullptr,
                      call.tables.first_id[t], static_cast<uint32_t>(num_ids)};
    size_t scan_bytes = 0;
    DYNEMB_CUDA_RETURN_IF_ERROR(ScanFirsts(order, nullptr, &scan_bytes, stream));
    ScratchPlan plan;
    const size_t first_ids = plan.Add<uint32_t>(num_ids);
    const size_t zeroed_bytes = plan.bytes();
    const size_t firsts_ahead = plan.Add<uint32_t>(num_ids);
    const size_t scan = plan.Add<std::byte>(static_cast<int64_t>(scan_bytes));
    DYNEMB_RETURN_IF_ERROR(plan.Allocate(exec));
    order.first_ids = plan.At<uint32_t>(first_ids);
    order.firsts_ahead = plan.At<uint32_t>(firsts_ahead);
    DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(order.first_ids, 0, zeroed_bytes, stream));
    FirstOfNewKeysKernel<<<Blocks(num_ids), kThreads, 0, stream>>>(group_, order);
    DYNEMB_CUDA_RETURN_IF_ERROR(ScanFirsts(order, plan.At<void>(scan), &scan_bytes, stream));
    NumberNewKeysKernel<<<Blocks(num_ids), kThreads, 0, stream>>>(group_, order);
  }
  return CudaStatus(cudaGetLastError(), "new keys");
}

}  // namespace dynemb
