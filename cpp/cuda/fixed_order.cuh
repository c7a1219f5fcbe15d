// Gradients by unique row, in an order that the input alone decides: a row's gradients by
// id, a table's rows by their first ids. The lookup's numbers are what atomics made of
// them, and sums depend on numbers, since sorted gradients are cut into runs by position.
// So rows are numbered anew, and the sort is stable.
#pragma once  // included by gradients.cu alone

#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <algorithm>
#include <bit>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <iterator>
#include <type_traits>
#include <vector>

#include "cuda/gradient_call.h"
#include "cuda/scratch.h"
#include "cuda/sort_kernels.cuh"
#include "memory/cuda_check.h"

namespace dynemb {

// A table of the update. Its ids lie side by side.
struct RenumberedTable {
  const int64_t* rows;  // [capacity], as the lookups numbered them
  int64_t* fixed_rows;  // [capacity], by first id
  uint32_t first_unique;
  uint32_t first_id;
};

template <size_t N>
struct RenumberedTablesOf {
  RenumberedTable tables[N];
  int count;

  // The table of a unique row, or of their end.
  __device__ int At(uint32_t unique) const {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (tables[middle].first_unique <= unique) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

struct FixedOrderScratch {
  const GroupState* group;
  uint32_t* first_ids;     // [uniques + 1]: ~ the first id of a row, 0: it has none
  uint32_t* uniques;       // [ids]: rows as the lookups numbered them, then as they are here
  uint32_t* ids;           // [ids]
  uint32_t* firsts_ahead;  // [ids + 1]: ids before this one that are the first of their row
  int32_t* numbers;        // [ids]: as `uniques` in the end, in the table; of ids with a row
  int32_t* filled;         // [tables of the update]: rows
  uint32_t num_ids, num_uniques;

  __device__ uint32_t FirstId(uint32_t unique) const { return ~first_ids[unique]; }
};

inline constexpr uint32_t kNoUnique = 0xFFFFFFFF;

// The first id of each row. Of a row's ids in a block mostly one goes on to memory: a hot
// row's would queue there.
template <class List>
__global__ void __launch_bounds__(kSortThreads)
    FirstIdsKernel(const __grid_constant__ List list, FixedOrderScratch s) {
  if (s.group->run == 0) return;
  __shared__ uint32_t first_place[kBlockSlots];  // of the rows that share a slot
  __shared__ uint32_t unique_at[kIdsPerBlock];
  for (uint32_t slot = threadIdx.x; slot < kBlockSlots; slot += kSortThreads) {
    first_place[slot] = kIdsPerBlock;
  }
  const SortBlock block(list, blockIdx.x);
  int64_t uniques[kIdsPerThread];
  block.LoadUniques(uniques);
  __syncthreads();
  const auto slot_of = [](int64_t unique) {
    return static_cast<uint32_t>(unique) * 0x9E3779B1u >> (32 - kBlockSlotBits);
  };
#pragma unroll
  for (int k = 0; k < kIdsPerThread; ++k) {
    const uint32_t place = static_cast<uint32_t>(k) * kSortThreads + threadIdx.x;
    const uint32_t unique = uniques[k] < 0 ? kNoUnique : static_cast<uint32_t>(uniques[k]);
    if (block.Has(k)) s.uniques[block.Id(k)] = unique;
    unique_at[place] = unique;
    if (unique != kNoUnique) atomicMin(&first_place[slot_of(uniques[k])], place);
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kIdsPerThread; ++k) {
    if (uniques[k] < 0) continue;
    const uint32_t place = static_cast<uint32_t>(k) * kSortThreads + threadIdx.x;
    const uint32_t first = first_place[slot_of(uniques[k])];
    if (first != place && unique_at[first] == unique_at[place]) continue;
    uint32_t* word = s.first_ids + uniques[k];
    const uint32_t mine = ~block.Id(k);
    if (*static_cast<volatile uint32_t*>(word) < mine) atomicMax(word, mine);
  }
}

// 1 for the first id of a row. An update that is not done has left anything in the scratch.
struct IsFirstId {
  FixedOrderScratch s;

  __device__ uint32_t operator()(uint32_t id) const {
    if (id >= s.num_ids) return 0;
    const uint32_t unique = s.uniques[id];
    return unique < s.num_uniques && s.FirstId(unique) == id ? 1 : 0;
  }
};
inline auto FirstIdFlags(const FixedOrderScratch& s) {
  return thrust::transform_iterator<IsFirstId, thrust::counting_iterator<uint32_t>, uint32_t,
                                    uint32_t>(thrust::counting_iterator<uint32_t>(0), IsFirstId{s});
}

// The new number of an id's row; the row's first id also puts the row in its place.
template <class Tables>
__device__ uint32_t Renumber(const Tables& tables, const FixedOrderScratch& s,
                             const uint32_t* firsts_ahead, uint32_t id, uint32_t unique,
                             uint32_t first) {
  const RenumberedTable& table = tables.tables[tables.At(unique)];
  const uint32_t number = firsts_ahead[first] - firsts_ahead[table.first_id];
  if (first == id) table.fixed_rows[number] = table.rows[unique - table.first_unique];
  s.numbers[id] = static_cast<int32_t>(number);
  return table.first_unique + number;
}
template <class Tables>
__device__ void CountRows(const Tables& tables, const FixedOrderScratch& s,
                          const uint32_t* firsts_ahead, int t) {
  const uint32_t end = t + 1 < tables.count ? tables.tables[t + 1].first_id : s.num_ids;
  s.filled[t] = static_cast<int32_t>(firsts_ahead[end] - firsts_ahead[tables.tables[t].first_id]);
}

// Numbers the rows of each table by their first ids. One thread an id, and one a table.
template <class Tables>
__global__ void __launch_bounds__(kThreads)
    RenumberKernel(const __grid_constant__ Tables tables, FixedOrderScratch s) {
  if (s.group->run == 0) return;
  const uint32_t id = blockIdx.x * kThreads + threadIdx.x;
  if (id < static_cast<uint32_t>(tables.count)) {
    CountRows(tables, s, s.firsts_ahead, static_cast<int>(id));
  }
  if (id >= s.num_ids) return;
  const uint32_t unique = s.uniques[id];
  // Ids without a row come last.
  s.uniques[id] = unique == kNoUnique
                      ? s.num_uniques
                      : Renumber(tables, s, s.firsts_ahead, id, unique, s.FirstId(unique));
  s.ids[id] = id;
}

// The first of sorted numbers that is not below `least`.
__device__ inline uint32_t LowerBound(const uint32_t* sorted, uint32_t count, uint32_t least) {
  uint32_t low = 0, high = count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (sorted[middle] < least) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Where the gradients of each row begin among the sorted ones, whose rows these are.
template <class Tables>
__global__ void __launch_bounds__(kThreads)
    FixedOffsetsKernel(const __grid_constant__ Tables tables, FixedOrderScratch s,
                       const uint32_t* sorted_uniques, uint32_t* offsets) {
  if (s.group->run == 0) return;
  const uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  if (at < s.num_ids) {
    const uint32_t unique = sorted_uniques[at];
    const bool begins = at == 0 || sorted_uniques[at - 1] != unique;
    if (begins && unique < s.num_uniques) offsets[unique] = at;
  }
  // Places behind the rows of a table, and the end: where the next table begins.
  if (at > s.num_uniques) return;
  const int t = tables.At(at);
  if (at - tables.tables[t].first_unique < static_cast<uint32_t>(s.filled[t])) return;
  const uint32_t next = t + 1 < tables.count ? tables.tables[t + 1].first_unique : s.num_uniques;
  offsets[at] = LowerBound(sorted_uniques, s.num_ids, next);
}

// A small update costs launches, not work: one block does all of it. An id and the number
// of its row are one word.
inline constexpr int kSmallIdBits = 12;
inline constexpr int64_t kSmallIds = int64_t{1} << kSmallIdBits;
static_assert(kSmallUniques <= kSmallIds && kSmallIds % kSortThreads == 0);

template <class List, class Tables>
__global__ void __launch_bounds__(kSortThreads)
    SmallFixedOrderKernel(const __grid_constant__ List list, const __grid_constant__ Tables tables,
                          FixedOrderScratch s, uint32_t blocks, uint32_t* offsets) {
  if (s.group->run == 0) return;
  constexpr int kEach = kSmallIds / kSortThreads;
  using Scan = cub::BlockScan<uint32_t, kSortThreads>;
  using Sort = cub::BlockRadixSort<uint32_t, kSortThreads, kEach>;
  struct Numbering {
    uint32_t first_ids[kSmallUniques];
    uint32_t by_id[kSmallIds + 1];  // first rows, then firsts_ahead
    typename Scan::TempStorage scan;
  };
  union Memory {
    Numbering numbering;
    typename Sort::TempStorage sort;
    uint32_t sorted_uniques[kSmallIds];
  };
  __shared__ Memory memory;
  uint32_t* first_ids = memory.numbering.first_ids;
  uint32_t* by_id = memory.numbering.by_id;
  for (uint32_t u = threadIdx.x; u < s.num_uniques; u += kSortThreads) first_ids[u] = kNoUnique;
  __syncthreads();
  for (uint32_t b = 0; b < blocks; ++b) {
    const SortBlock block(list, b);
    int64_t uniques[kIdsPerThread];
    block.LoadUniques(uniques);
    for (int k = 0; k < kIdsPerThread; ++k) {
      if (!block.Has(k)) continue;
      by_id[block.Id(k)] = uniques[k] < 0 ? kNoUnique : static_cast<uint32_t>(uniques[k]);
      if (uniques[k] >= 0) atomicMin(first_ids + uniques[k], block.Id(k));
    }
  }
  __syncthreads();
  const uint32_t begin = threadIdx.x * kEach;
  uint32_t uniques[kEach], ahead[kEach], words[kEach], all = 0;
  for (int i = 0; i < kEach; ++i) {
    uniques[i] = begin + i < s.num_ids ? by_id[begin + i] : kNoUnique;
    ahead[i] = uniques[i] != kNoUnique && first_ids[uniques[i]] == begin + i ? 1 : 0;
  }
  Scan(memory.numbering.scan).ExclusiveSum(ahead, ahead, all);
  __syncthreads();
  for (int i = 0; i < kEach; ++i) by_id[begin + i] = ahead[i];
  if (threadIdx.x == 0) by_id[kSmallIds] = all;
  __syncthreads();
  for (int t = static_cast<int>(threadIdx.x); t < tables.count; t += kSortThreads) {
    CountRows(tables, s, by_id, t);
  }
  for (int i = 0; i < kEach; ++i) {
    const uint32_t id = begin + i;
    words[i] = s.num_uniques << kSmallIdBits | id;  // no row, or behind the ids: these come last
    if (uniques[i] == kNoUnique) continue;
    words[i] = Renumber(tables, s, by_id, id, uniques[i], first_ids[uniques[i]]) << kSmallIdBits;
    words[i] |= id;
  }
  __syncthreads();
  Sort(memory.sort).Sort(words, kSmallIdBits, 2 * kSmallIdBits);
  __syncthreads();
  for (int i = 0; i < kEach; ++i) {
    memory.sorted_uniques[begin + i] = words[i] >> kSmallIdBits;
    if (begin + i < s.num_ids) s.ids[begin + i] = words[i] & (kSmallIds - 1);
  }
  __syncthreads();
  for (uint32_t u = threadIdx.x; u <= s.num_uniques; u += kSortThreads) {
    offsets[u] = LowerBound(memory.sorted_uniques, s.num_ids, u);
  }
}

// The host's side: lays its scratch out beside that of the call, then takes the place of
// the counting sort.
class FixedOrder {
 public:
  // blocks: of the call's ids, as for the counting sort.
  Status Plan(const UpdateTables& parts, int64_t ids, int64_t uniques, uint32_t blocks,
              ScratchPlan* plan) {
    blocks_ = blocks;
    scratch_.num_ids = static_cast<uint32_t>(ids);
    scratch_.num_uniques = static_cast<uint32_t>(uniques);
    is_small_ = blocks <= kSmallBlocks && ids <= kSmallIds && uniques < kSmallUniques;
    if (!is_small_) {
      size_t scan_bytes = 0, sort_bytes = 0;
      cub::DoubleBuffer<uint32_t> none;
      DYNEMB_CUDA_RETURN_IF_ERROR(Scan(nullptr, &scan_bytes, nullptr));
      DYNEMB_CUDA_RETURN_IF_ERROR(Sort(nullptr, &sort_bytes, &none, &none, nullptr));
      temporary_bytes_ = std::max(scan_bytes, sort_bytes);
    }
    for (size_t& place : by_id_) place = plan->Add<uint32_t>(ids + 1);
    for (int p = 0; p < parts.count; ++p) {
      rows_.push_back(plan->Add<int64_t>(parts.tables[p].capacity));
    }
    filled_ = plan->Add<int32_t>(parts.count);
    temporary_ = plan->Add<std::byte>(static_cast<int64_t>(temporary_bytes_));
    return Status();
  }

  // The lists of the call are new behind it: features have other numbers, tables other rows.
  Status Enqueue(const ScratchPlan& plan, cudaStream_t stream, GradientCall* call) {
    FixedOrderScratch& s = scratch_;
    s.group = call->scratch.group;
    s.first_ids = call->scratch.counts;
    s.uniques = plan.At<uint32_t>(by_id_[0]);
    s.ids = plan.At<uint32_t>(by_id_[2]);
    s.firsts_ahead = plan.At<uint32_t>(by_id_[4]);
    s.numbers = plan.At<int32_t>(by_id_[5]);
    s.filled = plan.At<int32_t>(filled_);
    cub::DoubleBuffer<uint32_t> uniques(s.uniques, plan.At<uint32_t>(by_id_[1]));
    cub::DoubleBuffer<uint32_t> ids(s.ids, plan.At<uint32_t>(by_id_[3]));
    uint32_t* offsets = call->scratch.offsets;
    cudaError_t failed = cudaSuccess;
    WithFew(call->list, call->list_on_device, call->parts, [&](const auto& list, const auto& few) {
      constexpr size_t kTables = std::size(std::decay_t<decltype(few)>{}.tables);
      const RenumberedTablesOf<kTables> tables = Renumbered<kTables>(plan, *call);
      if (is_small_) {
        SmallFixedOrderKernel<<<1, kSortThreads, 0, stream>>>(list, tables, s, blocks_, offsets);
        return;
      }
      FirstIdsKernel<<<blocks_, kSortThreads, 0, stream>>>(list, s);
      size_t bytes = temporary_bytes_;
      failed = Scan(plan.At<void>(temporary_), &bytes, stream);
      if (failed != cudaSuccess) return;
      const int64_t threads = std::max(int64_t{s.num_ids}, int64_t{tables.count});
      RenumberKernel<<<Blocks(threads), kThreads, 0, stream>>>(tables, s);
      failed = Sort(plan.At<void>(temporary_), &bytes, &uniques, &ids, stream);
      const int64_t places = std::max(int64_t{s.num_ids}, int64_t{s.num_uniques} + 1);
      FixedOffsetsKernel<<<Blocks(places), kThreads, 0, stream>>>(tables, s, uniques.Current(),
                                                                  offsets);
    });
    DYNEMB_CUDA_RETURN_IF_ERROR(failed);
    call->scratch.sorted = ids.Current();
    for (int p = 0; p < call->parts.count; ++p) {
      call->parts.tables[p].unique_rows = plan.At<int64_t>(rows_[static_cast<size_t>(p)]);
      call->filled[static_cast<size_t>(p)] = s.filled + p;
    }
    for (GradientParam& feature : call->list) {
      feature.index = s.numbers + feature.first_id;
      feature.merged = nullptr;
      feature.unique_capacity = s.num_uniques;
    }
    return CudaStatus(cudaGetLastError(), "gradients");
  }

 private:
  cudaError_t Scan(void* temporary, size_t* bytes, cudaStream_t stream) const {
    return cub::DeviceScan::ExclusiveSum(temporary, *bytes, FirstIdFlags(scratch_),
                                         scratch_.firsts_ahead, scratch_.num_ids + 1, stream);
  }
  cudaError_t Sort(void* temporary, size_t* bytes, cub::DoubleBuffer<uint32_t>* uniques,
                   cub::DoubleBuffer<uint32_t>* ids, cudaStream_t stream) const {
    return cub::DeviceRadixSort::SortPairs(temporary, *bytes, *uniques, *ids, scratch_.num_ids, 0,
                                           std::bit_width(scratch_.num_uniques), stream);
  }
  template <size_t N>
  RenumberedTablesOf<N> Renumbered(const ScratchPlan& plan, const GradientCall& call) const {
    RenumberedTablesOf<N> all{};
    int64_t first_id = 0;
    for (int p = 0; p < call.parts.count; ++p) {
      const UpdateTable& part = call.parts.tables[p];
      const size_t at = static_cast<size_t>(p);
      all.tables[all.count++] = {part.unique_rows, plan.At<int64_t>(rows_[at]),
                                 static_cast<uint32_t>(part.first_unique),
                                 static_cast<uint32_t>(first_id)};
      first_id += call.ids_of_part[at].ids;
    }
    return all;
  }

  FixedOrderScratch scratch_{};
  uint32_t blocks_ = 0;
  bool is_small_ = false;
  size_t by_id_[6] = {};      // uniques and ids twice, for the sort; firsts_ahead; numbers
  std::vector<size_t> rows_;  // of each table
  size_t filled_ = 0, temporary_ = 0, temporary_bytes_ = 0;
};

}  // namespace dynemb
