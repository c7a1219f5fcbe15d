// New keys of bounded tables get rows, their own or those of victims.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cub/block/block_scan.cuh>

#include "cuda/bounded_levels.cuh"
#include "cuda/cuda_backend.h"
#include "cuda/launch_together.cuh"
#include "cuda/scratch.h"
#include "cuda/touch.cuh"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

std::atomic<bool> cooperative_allowed{true};

// Blocks of the kernel on a multiprocessor.
constexpr unsigned kInsertBlocksPerSm = 3;
static_assert(kInsertBlocksPerSm <= kBlocksPerSm);

// Of the lookups whose updates are to come, and this one, the first epoch. All threads.
__device__ uint32_t OldestPinned(const LookupScratch& s, const BoundedScratch& b) {
  __shared__ uint32_t oldest;
  if (threadIdx.x == 0) oldest = s.epoch;
  __syncthreads();
  // A lookup releases the one that was max_outstanding lookups ago, whose place it takes.
  const int64_t released = b.lookups == 0 ? -1 : s.group->lookups % b.max_outstanding;
  for (int64_t k = threadIdx.x; k < b.max_outstanding; k += kThreads) {
    const uint32_t epoch = b.outstanding[k];
    if (epoch != 0 && k != released) atomicMin(&oldest, epoch);
  }
  __syncthreads();
  return oldest;
}

// Books the new keys of tables. Where some found no place, the others have left gaps in the
// numbers of unique rows, and get new ones.
template <class Tables>
__device__ void BookNewKeys(const Tables& tables, const LookupScratch& s, const BoundedScratch& b,
                            uint32_t count) {
  bool has_gaps = false;
  for (int t = 0; t < tables.count; ++t) {
    if (s.tables[tables.table[t]].scores == nullptr) continue;
    const int32_t unplaced = __ldcg(b.unplaced + t);
    has_gaps = has_gaps || unplaced != 0;
    if (blockIdx.x != 0 || threadIdx.x != 0) continue;
    CallCounts& counts = s.counts[t];
    const int64_t with_rows = min(FreeRows(tables, s, t), static_cast<int64_t>(counts.new_rows));
    // Only keys that wanted a victim can have found none.
    counts.evicted = counts.new_rows - static_cast<int32_t>(with_rows) - unplaced;
    if (unplaced == 0) counts.made = counts.new_rows;
  }
  if (!has_gaps) return;
  for (uint32_t base = blockIdx.x * kThreads; base < count; base += gridDim.x * kThreads) {
    const uint32_t number = base + threadIdx.x;
    OpenKey open{};
    int64_t row = kRowRefused;
    if (number < count) {
      open = b.keys[number];
      row = __ldcg(b.outcomes + number);
    }
    const bool moves = row >= 0 && __ldcg(b.unplaced + open.call_table) != 0;
    const int32_t first_table = b.keys[base].call_table;
    const int32_t nth =
        BlockTakeOfTable(moves, open.call_table, first_table, s.counts, &CallCounts::made);
    if (!moves) continue;
    const uint32_t unique = static_cast<uint32_t>(s.counts[open.call_table].unique + nth);
    tables.unique_rows[open.call_table][unique] = row;
    s.made_numbers[open.id] = unique;
    s.tables[tables.table[open.call_table]].stamps[row] =
        static_cast<uint64_t>(s.epoch) << 32 | unique;
  }
}

// Puts evictions on record, in order, as long as there is place: by one block.
template <class Tables>
__device__ void RecordEvicted(const Tables& tables, const LookupScratch& s,
                              const BoundedScratch& b) {
  using Scan = cub::BlockScan<uint32_t, kThreads>;
  __shared__ typename Scan::TempStorage storage;
  for (int t = 0; t < tables.count; ++t) {
    const TableView& table = s.tables[tables.table[t]];
    TableState& state = s.states[tables.table[t]];
    const CallCounts& counts = s.counts[t];
    if (table.record_limit == 0 || counts.evicted == 0) continue;
    const int64_t first = INT32_MAX - counts.first_new;
    const int64_t end = first + counts.new_rows;
    int64_t recorded = state.recorded;
    const int64_t before = recorded;
    __syncthreads();
    for (int64_t base = first + FreeRows(tables, s, t); base < end; base += kThreads) {
      if (recorded >= table.record_limit) break;
      const int64_t number = base + threadIdx.x;
      const bool evicting = number < end && __ldcg(b.outcomes + number) >= 0;
      uint32_t place = 0, sum = 0;
      Scan(storage).ExclusiveSum(evicting ? 1u : 0u, place, sum);
      if (evicting && recorded + place < table.record_limit) {
        table.recorded[recorded + place] = b.evicted[number];
      }
      recorded += sum;
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      state.recorded = min(recorded, table.record_limit);
      state.record_lost += int64_t{counts.evicted} - (state.recorded - before);
    }
    __syncthreads();
  }
}

template <bool kTogether, class Tables>
__global__ void __launch_bounds__(kThreads, kInsertBlocksPerSm)
    InsertBoundedKernel(const __grid_constant__ Tables tables, LookupScratch s, BoundedScratch b,
                        int64_t num_ids) {
  bool missed = false;
  for (int t = 0; t < tables.count; ++t) missed = missed || s.counts[t].missed != 0;
  if (!missed || !Runs(*s.group)) return;
  if (s.group->may_replay != 0) {
    // What has no row now was refused the first time.
    for (int64_t id = int64_t{blockIdx.x} * kThreads + threadIdx.x; id < num_ids;
         id += int64_t{gridDim.x} * kThreads) {
      if (IsSlot(s.rows[id])) s.rows[id] = kRowRefused;
    }
    return;
  }
  if (blockIdx.x == 0 && threadIdx.x < 3) b.left[threadIdx.x] = b.taken[threadIdx.x] = 0;
  for (int t = static_cast<int>(threadIdx.x); blockIdx.x == 0 && t < tables.count; t += kThreads) {
    b.unplaced[t] = 0;
  }
  const uint32_t oldest_pinned = OldestPinned(s, b);
  const auto hang = [&](const OpenKey& open, uint32_t number) {
    Hang(tables, s, b, open, number, 0);
  };
  const uint32_t count = ListNewKeys<kTogether>(tables, s, b, num_ids, hang);
  ServeAllLevels<kTogether>(tables, s, b, oldest_pinned, count);
  BookNewKeys(tables, s, b, count);
  if (b.evicted == nullptr) return;
  SyncGrid<kTogether>();
  if (blockIdx.x == 0) RecordEvicted(tables, s, b);
}

// Ids of new keys, for scores that add up or are given. One thread an id, as in the probe.
template <class List>
__global__ void __launch_bounds__(kThreads)
    ScoreNewKernel(const __grid_constant__ List list, LookupScratch s, BoundedScratch b) {
  const FeatureParam& feature = FeatureOfBlock(list);
  const TableView& table = s.tables[feature.table];
  if (!IsScoredById(table.score)) return;
  if (s.group->may_replay != 0 || !Runs(*s.group)) return;
  const int64_t i = int64_t{blockIdx.x - feature.first_block} * kThreads + threadIdx.x;
  const int64_t id = feature.first_id + i;
  int64_t slot = -1;
  if (i < feature.num_ids) {
    const int64_t code = s.rows[id];
    const int64_t bringer = IsSameKey(code) ? kSameKey - code : id;
    if (code < kRowRefused && IsMadeRow(s.rows[bringer])) slot = b.slots[bringer];
  }
  if (slot < 0) return;
  const TableState& state = s.states[feature.table];
  TouchOnDevice(table, slot, false, 1, TouchValue(table, state, feature, i, b.lookups, b.time));
}

}  // namespace

void CudaBackend::AllowCooperativeLaunch(bool allowed) { cooperative_allowed = allowed; }

bool CudaBackend::LaunchesTogether() const {
  return cooperative_ && cooperative_allowed.load(std::memory_order_relaxed);
}

Status CudaBackend::InsertBounded(const Executor& exec, DeviceLookup* call) {
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  const bool together = LaunchesTogether();
  BoundedScratch& b = call->bounded;
  b.outstanding = outstanding_;
  b.max_outstanding = max_outstanding();
  b.lookups = call->lookups;
  b.time = call->time;
  const unsigned blocks =
      together ? std::min(Blocks(call->num_ids), kInsertBlocksPerSm * num_sms_) : 1u;
  cudaError_t launched = cudaSuccess;
  WithFewTables(call->tables, [&]<class Tables>(const Tables& tables) {
    launched = LaunchTogether(together, InsertBoundedKernel<true, Tables>,
                              InsertBoundedKernel<false, Tables>, blocks, stream, tables,
                              call->scratch, b, call->num_ids);
  });
  DYNEMB_CUDA_RETURN_IF_ERROR(launched);
  const auto scored_by_id = [&](int32_t position) {
    return IsScoredById(configs()[static_cast<size_t>(position)].score);
  };
  const auto& tables = call->tables;
  if (std::any_of(tables.table, tables.table + tables.count, scored_by_id)) {
    for (size_t l = 0; l < call->lists.size(); ++l) {
      if (call->blocks[l] == 0) continue;
      WithFewFeatures(call->lists[l], [&](const auto& list) {
        ScoreNewKernel<<<call->blocks[l], kThreads, 0, stream>>>(list, call->scratch, b);
      });
    }
  }
  DYNEMB_RETURN_IF_ERROR(Touch(exec, *call));
  return CudaStatus(cudaGetLastError(), "insert");
}

}  // namespace dynemb
