// Row splits that are wrong make the whole call undone: found before anything changes.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/cuda_backend.h"
#include "cuda/device_ops.cuh"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

constexpr int kListSplits = 16;
constexpr int kPositionBits = 48;

struct SplitList {
  RowSplits splits[kListSplits];
  uint32_t first_block[kListSplits];
  int count;
};

// One thread a split. The last block to come writes down the first fault, as a walk
// through the splits would find it.
__global__ void __launch_bounds__(kThreads)
    CheckSplitsKernel(const __grid_constant__ SplitList list, GroupState* group,
                      int32_t* is_wrong) {
  int mine = 0;
  while (mine + 1 < list.count && list.first_block[mine + 1] <= blockIdx.x) ++mine;
  const RowSplits& splits = list.splits[mine];
  const int64_t at = int64_t{blockIdx.x - list.first_block[mine]} * kThreads + threadIdx.x;
  auto* first = reinterpret_cast<unsigned long long*>(&group->first_wrong_split);
  if (at < splits.NumSplits() && splits.FaultAt(at) != SplitFault::kNone) {
    const uint64_t place = static_cast<uint64_t>(mine) << kPositionBits | static_cast<uint64_t>(at);
    atomicMax(first, static_cast<unsigned long long>(~place));
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (atomicInc(&group->checked_blocks, gridDim.x - 1) != gridDim.x - 1) return;
  __threadfence();
  const unsigned long long found = atomicExch(first, 0ull);
  if (found == 0) return;
  if (is_wrong != nullptr) *is_wrong = 1;
  if (group->error != DeviceError::kNone) return;
  const uint64_t place = ~static_cast<uint64_t>(found);
  group->error = DeviceError::kBadSplits;
  group->error_split = list.splits[place >> kPositionBits].Wrong(
      static_cast<int64_t>(place & ((uint64_t{1} << kPositionBits) - 1)));
}

}  // namespace

Status CudaBackend::CheckSplits(const Executor& exec, const std::vector<RowSplits>& all,
                                int32_t* is_wrong) {
  for (size_t first = 0; first < all.size(); first += kListSplits) {
    SplitList list{};
    uint32_t blocks = 0;
    for (size_t s = first; s < std::min(all.size(), first + kListSplits); ++s) {
      list.splits[list.count] = all[s];
      list.first_block[list.count++] = blocks;
      blocks += Blocks(all[s].NumSplits());
    }
    if (blocks == 0) continue;
    CheckSplitsKernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(exec.stream)>>>(list, group_,
                                                                                       is_wrong);
  }
  return CudaStatus(cudaGetLastError(), "row splits");
}

}  // namespace dynemb
