// Which keys made way for those of a lookup, as its outputs.
#include <cuda_runtime.h>

#include <algorithm>
#include <cub/block/block_scan.cuh>

#include "cuda/call_state.cuh"
#include "cuda/cuda_backend.h"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

constexpr int kScanThreads = 1024;
constexpr int kKeysPerThread = 4;

// How many keys the lookup of an epoch evicted from a table.
struct KeptCount {
  uint32_t epoch;
  int32_t count;
};

// The evictions of the latest lookup that was asked for them: a replay repeats them.
struct KeptEvicted {
  KeptCount* counts;  // [tables of the call]
  EvictedKey* keys;   // [ids of the call], those of a table from its first id on
};
constexpr Bytes kCountBytes = kMaxCallTables * static_cast<Bytes>(sizeof(KeptCount));

// Lists the keys that one table has evicted in this call, in order; returns how many. All
// threads of the block.
template <class Tables>
__device__ int32_t KeepEvicted(const Tables& tables, const LookupScratch& s,
                               const BoundedScratch& b, int call_table, EvictedKey* kept) {
  using Scan = cub::BlockScan<uint32_t, kScanThreads>;
  __shared__ typename Scan::TempStorage storage;
  const CallCounts& counts = s.counts[call_table];
  if (counts.evicted == 0) return 0;
  const int64_t first = INT32_MAX - counts.first_new;
  const int64_t end = first + counts.new_rows;
  uint32_t before = 0;
  for (int64_t base = first + FreeRows(tables, s, call_table); base < end;
       base += kScanThreads * kKeysPerThread) {
    const int64_t mine = base + int64_t{threadIdx.x} * kKeysPerThread;
    bool evicts[kKeysPerThread];
    uint32_t place = 0, sum = 0;
    for (int k = 0; k < kKeysPerThread; ++k) {
      evicts[k] = mine + k < end && b.outcomes[mine + k] >= 0;
      place += evicts[k] ? 1u : 0u;
    }
    Scan(storage).ExclusiveSum(place, place, sum);
    place += before;
    for (int k = 0; k < kKeysPerThread; ++k) {
      if (evicts[k]) kept[place++] = b.evicted[mine + k];
    }
    before += sum;
    __syncthreads();
  }
  return static_cast<int32_t>(before);
}

// One block. The outputs are zeros so far.
template <class Tables>
__global__ void __launch_bounds__(kScanThreads)
    ReturnEvictedKernel(const __grid_constant__ Tables tables, LookupScratch s, BoundedScratch b,
                        KeptEvicted kept, int call_table, EvictedOutput out) {
  if (!Runs(*s.group)) return;
  KeptCount& last = kept.counts[call_table];
  EvictedKey* keys = kept.keys + tables.first_id[call_table];
  int32_t count = 0;
  if (s.group->may_replay == 0) {
    count = KeepEvicted(tables, s, b, call_table, keys);
  } else if (last.epoch == s.group->last_lookup_epoch) {
    count = last.count;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    if (s.group->may_replay == 0) last = {s.epoch, count};
    *out.count = count;
  }
  for (int64_t i = threadIdx.x; i < count; i += kScanThreads) {
    out.keys[i] = keys[i].key;
    out.scores[i] = keys[i].score;
  }
}

}  // namespace

Status CudaBackend::MakeKeptEvicted(const Executor& exec, int64_t num_ids) {
  const bool is_first = kept_evicted_.committed() == 0;
  DYNEMB_RETURN_IF_ERROR(
      kept_evicted_.Commit(kCountBytes + num_ids * static_cast<Bytes>(sizeof(EvictedKey))));
  if (!is_first) return Status();
  return CudaStatus(cudaMemsetAsync(kept_evicted_.data(), 0, static_cast<size_t>(kCountBytes),
                                    static_cast<cudaStream_t>(exec.stream)),
                    "cudaMemsetAsync");
}

Status CudaBackend::ReturnEvicted(const Executor& exec, const DeviceLookup& call,
                                  const LookupBatch& batch) {
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  const KeptEvicted kept{reinterpret_cast<KeptCount*>(kept_evicted_.data()),
                         reinterpret_cast<EvictedKey*>(kept_evicted_.data() + kCountBytes)};
  for (const EvictedOutput& out : batch.evicted) {
    DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(out.count, 0, sizeof(int32_t), stream));
    if (out.capacity == 0) continue;
    const size_t words = static_cast<size_t>(out.capacity);
    DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(out.keys, 0, words * sizeof(Key), stream));
    DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(out.scores, 0, words * sizeof(uint64_t), stream));
    const auto found = std::find(batch.tables.begin(), batch.tables.end(), out.table);
    const int call_table = static_cast<int>(found - batch.tables.begin());
    WithFewTables(call.tables, [&]<class Tables>(const Tables& tables) {
      ReturnEvictedKernel<Tables><<<1, kScanThreads, 0, stream>>>(
          tables, call.scratch, call.bounded, kept, call_table, out);
    });
  }
  return CudaStatus(cudaGetLastError(), "evicted keys");
}

}  // namespace dynemb
