// Gradients of looked-up ids by unique row: a counting sort. Count and rank; scan
// (in gradients.cu); permute.
#pragma once  // included by gradients.cu alone

#include <cub/block/block_scan.cuh>

#include "core/pool.h"
#include "cuda/gather_kernels.cuh"
#include "cuda/gradient_call.h"

namespace dynemb {

// One thread decides whether the update is to be done; all clear its counters.
__global__ void __launch_bounds__(kThreads)
    BeginUpdateKernel(GroupState* group, const TableState* states, const int32_t* token,
                      uint32_t epoch, const __grid_constant__ HeaderList list, uint4* counters,
                      int64_t size) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (int64_t i = thread; i < size; i += int64_t{gridDim.x} * kThreads) {
    counters[i] = make_uint4(0, 0, 0, 0);
  }
  if (thread != 0) return;
  group->token = *token;
  group->run = group->error == DeviceError::kNone && *token == group->version;
  for (int i = 0; i < list.count && group->run != 0; ++i) {
    const uint32_t looked = static_cast<uint32_t>(list.headers[i][kHeaderGeneration]);
    if (looked == 0 || looked > epoch || looked <= group->last_erase_epoch) {
      group->run = 0;
      group->error = DeviceError::kStaleActs;
    }
  }
  for (int i = 0; i < list.num_evicting && group->run != 0; ++i) {
    const int32_t table = list.evicting[i];
    const int32_t* header = list.headers[list.header_of[i]];
    if (states[table].last_evicted_epoch < static_cast<uint32_t>(header[kHeaderGeneration])) {
      continue;
    }
    group->run = 0;
    group->error = DeviceError::kReleased;
    group->error_got = table;
  }
}

// Positions for the threads of a block that want one, from a global counter: one
// atomic a block. Every thread of the block calls it; -1 for those that do not
// want one.
__device__ inline int64_t BlockAllocate(bool wanted, uint32_t* counter) {
  __shared__ uint32_t taken, base;
  __syncthreads();
  if (threadIdx.x == 0) taken = 0;
  __syncthreads();
  const unsigned mask = __ballot_sync(kFullWarp, wanted);
  uint32_t offset = 0;
  if (mask != 0) {
    const int leader = __ffs(static_cast<int>(mask)) - 1;
    if (Lane() == leader) offset = atomicAdd(&taken, static_cast<uint32_t>(__popc(mask)));
    offset = __shfl_sync(kFullWarp, offset, leader);
    offset += static_cast<uint32_t>(__popc(mask & ((1u << Lane()) - 1)));
  }
  __syncthreads();
  if (threadIdx.x == 0 && taken != 0) base = atomicAdd(counter, taken);
  __syncthreads();
  return wanted ? static_cast<int64_t>(base + offset) : -1;
}

// Numbers the unique rows of several lookups anew: first come, by stamp.
__global__ void __launch_bounds__(kThreads)
    MergeKernel(UpdateScratch scratch, int32_t table, const int64_t* rows, int64_t capacity,
                const int32_t* filled, uint32_t epoch, int32_t* merged, int64_t* merged_rows,
                uint64_t* former, uint32_t* count) {
  if (scratch.group->run == 0) return;
  const TableView& view = scratch.tables[table];
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = i < min(capacity, int64_t{*filled}) ? rows[i] : -1;
  bool first = false;
  unsigned long long old = 0;
  unsigned long long* stamp =
      reinterpret_cast<unsigned long long*>(view.stamps + (row >= 0 ? row : 0));
  if (row >= 0) {
    old = *reinterpret_cast<volatile unsigned long long*>(stamp);
    if (old >> 32 != epoch) {
      first = atomicCAS(stamp, old, static_cast<unsigned long long>(epoch) << 32) == old;
    }
  }
  const int64_t position = BlockAllocate(first, count);
  if (first) {
    *stamp = static_cast<unsigned long long>(epoch) << 32 | static_cast<unsigned>(position);
    merged_rows[position] = row;
    if (former != nullptr) former[position] = old;
    merged[i] = static_cast<int32_t>(position);
  } else if (i < capacity) {
    merged[i] = -1;  // resolved once all stamps of this launch are final
  }
}

__global__ void __launch_bounds__(kThreads)
    ResolveMergedKernel(UpdateScratch scratch, int32_t table, const int64_t* rows, int64_t capacity,
                        const int32_t* filled, int32_t* merged) {
  if (scratch.group->run == 0) return;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < min(capacity, int64_t{*filled})) {
    merged[i] = static_cast<int32_t>(scratch.tables[table].stamps[rows[i]] & 0xFFFFFFFFu);
  }
}

// Bounded tables: an update is no claim, pins stay as they were.
__global__ void __launch_bounds__(kThreads)
    RestoreStampsKernel(UpdateScratch scratch, int32_t table, const int64_t* merged_rows,
                        const uint64_t* former, int64_t capacity, const uint32_t* count) {
  if (scratch.group->run == 0) return;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < min(capacity, int64_t{*count})) {
    scratch.tables[table].stamps[merged_rows[i]] = former[i];
  }
}

inline constexpr uint32_t kBlockSlotBits = 12;
inline constexpr uint32_t kBlockSlots = 1u << kBlockSlotBits;
static_assert(kBlockSlots == 2 * kIdsPerBlock);

// One block's ids of a feature.
struct SortBlock {
  const GradientParam& feature;
  int64_t first;  // of this thread

  template <class List>
  __device__ SortBlock(const List& list, uint32_t block)
      : feature(FeatureOfBlock(list, block)),
        first(int64_t{block - feature.first_block} * kIdsPerBlock + threadIdx.x) {}

  __device__ bool Has(int k) const { return first + k * kSortThreads < feature.num_ids; }
  // Of the ids of a thread, all loads at once.
  __device__ void LoadUniques(int64_t (&uniques)[kIdsPerThread]) const {
#pragma unroll
    for (int k = 0; k < kIdsPerThread; ++k) {
      uniques[k] = Has(k) ? UniqueOf(feature, first + k * kSortThreads) : -1;
    }
  }
  __device__ uint32_t Id(int k) const {
    return static_cast<uint32_t>(feature.first_id + first + k * kSortThreads);
  }
};

struct RankMemory {
  int32_t slot_row[kBlockSlots];  // -1: empty
  uint32_t slot_count[kBlockSlots];
};

// How many ids has each row, and which of them is this one. A block first counts its
// own ids in shared memory: a row that is a twentieth of the batch would otherwise
// have tens of thousands of warps queue for its counter.
__device__ inline void RankBlock(const SortBlock& block, const UpdateScratch& scratch,
                                 RankMemory* memory) {
  for (uint32_t s = threadIdx.x; s < kBlockSlots; s += kSortThreads) {
    memory->slot_row[s] = -1;
    memory->slot_count[s] = 0;
  }
  __syncthreads();
  int64_t uniques[kIdsPerThread];
  block.LoadUniques(uniques);
  uint32_t slots[kIdsPerThread];  // kBlockSlots: no row
  uint32_t ranks[kIdsPerThread];
#pragma unroll
  for (int k = 0; k < kIdsPerThread; ++k) {
    slots[k] = kBlockSlots;
    ranks[k] = 0;
    if (uniques[k] < 0) continue;
    const int32_t row = static_cast<int32_t>(uniques[k]);
    uint32_t slot = static_cast<uint32_t>(row) * 0x9E3779B1u >> (32 - kBlockSlotBits);
    for (;; slot = (slot + 1) & (kBlockSlots - 1)) {
      const int32_t other = atomicCAS(&memory->slot_row[slot], -1, row);
      if (other == -1 || other == row) break;
    }
    slots[k] = slot;
    ranks[k] = atomicAdd(&memory->slot_count[slot], 1u);
  }
  __syncthreads();
  for (uint32_t s = threadIdx.x; s < kBlockSlots; s += kSortThreads) {
    uint32_t& count = memory->slot_count[s];
    if (count != 0) count = atomicAdd(&scratch.counts[memory->slot_row[s]], count);
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kIdsPerThread; ++k) {
    if (slots[k] != kBlockSlots) {
      scratch.ranks[block.Id(k)] = memory->slot_count[slots[k]] + ranks[k];
    }
  }
}

__device__ inline void PermuteBlock(const SortBlock& block, const UpdateScratch& scratch) {
  int64_t uniques[kIdsPerThread];
  block.LoadUniques(uniques);
  uint32_t at[kIdsPerThread];
#pragma unroll
  for (int k = 0; k < kIdsPerThread; ++k) {
    if (uniques[k] >= 0) at[k] = scratch.ranks[block.Id(k)] + scratch.offsets[uniques[k]];
  }
#pragma unroll
  for (int k = 0; k < kIdsPerThread; ++k) {
    if (uniques[k] >= 0) scratch.sorted[at[k]] = block.Id(k);
  }
}

template <class List>
__global__ void __launch_bounds__(kSortThreads)
    RankKernel(const __grid_constant__ List list, UpdateScratch scratch) {
  if (scratch.group->run == 0) return;
  __shared__ RankMemory memory;
  RankBlock(SortBlock(list, blockIdx.x), scratch, &memory);
}

template <class List>
__global__ void __launch_bounds__(kSortThreads)
    PermuteKernel(const __grid_constant__ List list, UpdateScratch scratch) {
  if (scratch.group->run == 0) return;
  PermuteBlock(SortBlock(list, blockIdx.x), scratch);
}

// A small update costs launches, not work: one block does the whole sort.
inline constexpr uint32_t kSmallBlocks = 8;
inline constexpr int64_t kSmallUniques = 4096;

template <class List>
__global__ void __launch_bounds__(kSortThreads)
    SmallSortKernel(const __grid_constant__ List list, UpdateScratch scratch, uint32_t blocks) {
  if (scratch.group->run == 0) return;
  using Scan = cub::BlockScan<uint32_t, kSortThreads>;
  union Memory {
    RankMemory rank;
    typename Scan::TempStorage scan;
  };
  __shared__ Memory memory;
  for (uint32_t b = 0; b < blocks; ++b) {
    RankBlock(SortBlock(list, b), scratch, &memory.rank);
    __syncthreads();
  }
  constexpr int kEach = kSmallUniques / kSortThreads + 1;
  uint32_t counts[kEach];
  const int64_t begin = int64_t{threadIdx.x} * kEach;
  for (int i = 0; i < kEach; ++i) {
    counts[i] = begin + i <= scratch.num_uniques ? __ldcg(&scratch.counts[begin + i]) : 0;
  }
  Scan(memory.scan).ExclusiveSum(counts, counts);
  for (int i = 0; i < kEach; ++i) {
    if (begin + i <= scratch.num_uniques) scratch.offsets[begin + i] = counts[i];
  }
  __syncthreads();
  for (uint32_t b = 0; b < blocks; ++b) PermuteBlock(SortBlock(list, b), scratch);
}

}  // namespace dynemb
