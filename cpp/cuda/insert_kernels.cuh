// Absent keys of a probed call: equal ones elect one, the elected become rows.
#pragma once  // included by lookup.cu alone

#include <cooperative_groups.h>

#include "cuda/call_state.cuh"
#include "cuda/new_rows.cuh"

namespace dynemb {

// Equal absent keys elect one miss that inserts the key.
__device__ inline void Elect(const LookupScratch& scratch, uint32_t count) {
  for (uint32_t m = blockIdx.x * kThreads + threadIdx.x; m < count; m += gridDim.x * kThreads) {
    const Miss miss = scratch.misses[m];
    uint64_t slot = Mix64(HashKey(miss.key).bits + static_cast<uint64_t>(miss.table));
    for (;; ++slot) {
      const int other =
          atomicCAS(&scratch.miss_slots[slot & scratch.miss_mask], 0, static_cast<int>(m) + 1) - 1;
      if (other == -1) break;
      if (scratch.misses[other].key == miss.key && scratch.misses[other].table == miss.table) {
        scratch.misses[m].winner = other;
        break;
      }
    }
  }
}

// A place in a counter of its table for each lane that wants one: one atomic a table.
// All lanes call it.
__device__ inline int32_t TakeOfTable(bool wanted, int32_t table, int32_t* counter) {
  const unsigned peers = __match_any_sync(kFullWarp, wanted ? table : -1);
  const int leader = __ffs(static_cast<int>(peers)) - 1;
  int32_t first = 0;
  if (wanted && Lane() == leader) first = atomicAdd(counter, __popc(peers));
  first = __shfl_sync(kFullWarp, first, leader);
  return first + __popc(peers & ((1u << Lane()) - 1));
}

// The same for a block, whose threads mostly want places of one table: one atomic then.
__device__ inline int32_t BlockTakeOfTable(bool wanted, int32_t table, int32_t first_table,
                                           CallCounts* counts) {
  __shared__ uint32_t taken;
  __shared__ int32_t first;
  if (threadIdx.x == 0) taken = 0;
  if (!__syncthreads_and(!wanted || table == first_table)) {
    return TakeOfTable(wanted, table, &counts[table].new_rows);
  }
  const uint32_t mine = WarpAllocate(wanted, &taken);
  __syncthreads();
  if (threadIdx.x == 0 && taken != 0) {
    first = atomicAdd(&counts[first_table].new_rows, static_cast<int32_t>(taken));
  }
  __syncthreads();
  return first + static_cast<int32_t>(mine);
}

// Elected misses become rows. Threads place their keys. Warps write the new rows together
// where nobody else does: those that are copied are written by the copy, which makes
// them anew instead of reading them. New rows are numbered behind those that the probe has claimed.
template <class Tables>
__device__ void InsertElected(const Tables& tables, const LookupScratch& scratch, uint32_t count) {
  const bool replay = scratch.group->may_replay != 0;
  for (uint32_t base = blockIdx.x * kThreads; base < count; base += gridDim.x * kThreads) {
    const uint32_t m = base + threadIdx.x;
    Miss miss{};
    bool elected = false;
    if (m < count) {
      miss = scratch.misses[m];
      elected = miss.winner == static_cast<int32_t>(m);
    }
    const int32_t nth = BlockTakeOfTable(elected && !replay, miss.call_table,
                                         scratch.misses[base].call_table, scratch.counts);
    const bool fits = elected && !replay && nth < tables.room[miss.call_table];
    int64_t row = -1;
    if (fits) {
      const TableState& state = scratch.states[miss.table];
      const TableView& table = scratch.tables[miss.table];
      const uint32_t unique = static_cast<uint32_t>(scratch.counts[miss.call_table].unique + nth);
      row = nth < state.free_count ? table.free_rows[state.free_count - 1 - nth]
                                   : state.high_water + (nth - state.free_count);
      tables.unique_rows[miss.call_table][unique] = row;
      table.stamps[row] = static_cast<uint64_t>(scratch.epoch) << 32 | unique;
      PlaceAbsentOnDevice(table.index, Entry{miss.key, static_cast<uint64_t>(row)});
    }
    if (elected) scratch.misses[m].row = row >= 0 ? row : int64_t{kRowRefused};
    __shared__ NewRow new_rows[kThreads];
    NewRow* mine = new_rows + threadIdx.x / 32 * 32;
    const bool writes = fits && miss.row_out == nullptr;
    unsigned fresh = __ballot_sync(kFullWarp, writes);
    while (fresh != 0) {
      const int32_t table = __shfl_sync(kFullWarp, miss.table, __ffs(static_cast<int>(fresh)) - 1);
      const TableView& view = scratch.tables[table];
      const bool is_mine = writes && miss.table == table;
      const unsigned same = __ballot_sync(kFullWarp, is_mine);
      __syncwarp();
      if (is_mine) mine[RankAmong(same)] = {miss.key, view.Row(row), nullptr};
      __syncwarp();
      InitRowsByWarp(view, mine, __popc(same));
      fresh &= ~same;
    }
  }
}

__device__ inline bool HasMisses(const LookupScratch& scratch) {
  return *scratch.miss_count != 0 && Runs(*scratch.group);
}

__global__ void __launch_bounds__(kThreads) ElectKernel(LookupScratch scratch) {
  if (HasMisses(scratch)) Elect(scratch, *scratch.miss_count);
}

template <class Tables>
__global__ void __launch_bounds__(kThreads)
    InsertKernel(const __grid_constant__ Tables tables, LookupScratch scratch) {
  if (HasMisses(scratch)) InsertElected(tables, scratch, *scratch.miss_count);
}

// Blocks that fit beside each other, which a cooperative launch asks for.
inline constexpr unsigned kMissBlocksPerSm = 4;

// Both in one launch, all of whose blocks run at once. Most calls miss nothing.
template <class Tables>
__global__ void __launch_bounds__(kThreads, kMissBlocksPerSm)
    ElectAndInsertKernel(const __grid_constant__ Tables tables, LookupScratch scratch) {
  if (!HasMisses(scratch)) return;
  const uint32_t count = *scratch.miss_count;
  Elect(scratch, count);
  cooperative_groups::this_grid().sync();
  InsertElected(tables, scratch, count);
}

}  // namespace dynemb
