// Find or insert, in the order of the launches: probe and claim; make absent keys
// unique; insert them; number and copy. A claim is a stamp of this call's epoch:
// whoever sets it first gives the row its number among the call's unique rows.
#pragma once  // included by lookup.cu alone

#include "cuda/call_state.cuh"
#include "cuda/gather_kernels.cuh"
#include "cuda/new_rows.cuh"

namespace dynemb {

// What a lookup's token says. Every block of the first kernel decides for itself;
// one writes it down for the kernels after it.
struct LookupStart {
  bool run, may_replay;
};

__device__ inline LookupStart StartLookup(GroupState* group, int32_t token, bool replayable,
                                          bool writes) {
  const bool failed = group->error != DeviceError::kNone;
  const bool current = token == group->version;
  LookupStart start;
  start.may_replay = !current && replayable && group->last_was_lookup != 0 &&
                     static_cast<uint32_t>(token) + 1 == static_cast<uint32_t>(group->version);
  start.run = !failed && (current || start.may_replay);
  if (writes) {
    group->token = token;
    group->run = start.run;
    group->may_replay = start.may_replay;
  }
  return start;
}

// A lookup of no ids.
__global__ void StartEmptyLookupKernel(GroupState* group, const int32_t* token, bool replayable) {
  StartLookup(group, *token, replayable, true);
}

// What a probe is to do beside finding rows and claiming them.
struct ProbeOptions {
  bool replayable;  // the last lookup may be repeated
  bool is_first;    // of the launches of the call
  bool copies;      // the call has outputs, which new rows of copied features wait for
};

// What a block of the probe adds up before it touches what all blocks share: atomics on
// one address pass one by one, a warp each would queue for longer than the rows take.
struct BlockProbe {
  uint32_t uniques, misses, padded;
  uint32_t first_unique, first_miss;
  unsigned long long checksum;
};

// The rows that a block has met: of equal ones a single thread goes on to the claim.
// Otherwise all threads with a hot key, tens of thousands, come to its stamp at once.
inline constexpr uint32_t kSeenSlots = 2 * kThreads;

// True for the first thread of the block that comes with `row`. slots: row + 1, or 0.
__device__ inline bool IsFirstOfBlock(int64_t row, unsigned long long* slots) {
  const unsigned long long mark = static_cast<unsigned long long>(row) + 1;
  uint32_t slot = static_cast<uint32_t>(Mix64(mark)) % kSeenSlots;
  for (;; slot = (slot + 1) % kSeenSlots) {
    const unsigned long long other = atomicCAS(&slots[slot], 0ull, mark);
    if (other == 0) return true;
    if (other == mark) return false;
  }
}

__device__ inline void BookBlock(BlockProbe* block, CallCounts* counts,
                                 const LookupScratch& scratch) {
  const BlockProbe& all = *block;
  if (all.uniques != 0) {
    block->first_unique =
        static_cast<uint32_t>(atomicAdd(&counts->unique, static_cast<int32_t>(all.uniques)));
  }
  if (all.misses != 0) block->first_miss = atomicAdd(scratch.miss_count, all.misses);
  if (all.padded != 0) atomicAdd(&counts->padded, static_cast<unsigned long long>(all.padded));
  atomicAdd(reinterpret_cast<unsigned long long*>(&scratch.group->ids_checksum), all.checksum);
}

// One thread an id: finds its row and claims it. Rows are copied by a later kernel: in
// this one, under the load of the copies, the five reads that follow each other here
// take longer than both kernels apart (docs/decisions/0006).
template <class List, class Tables>
__global__ void __launch_bounds__(kThreads)
    ProbeKernel(const __grid_constant__ List list, const __grid_constant__ Tables tables,
                LookupScratch scratch, const int32_t* token, ProbeOptions options) {
  const FeatureParam& feature = FeatureOfBlock(list);
  const TableView& table = scratch.tables[feature.table];
  CallCounts& counts = scratch.counts[feature.call_table];
  const int64_t i = int64_t{blockIdx.x - feature.first_block} * kThreads + threadIdx.x;
  const bool in_range = i < feature.num_ids;
  const int64_t id = feature.first_id + i;
  const Key key = in_range ? LoadKeyOnDevice(feature, i) : 0;

  // One read for the block: all of its threads go the same way.
  __shared__ bool run;
  __shared__ BlockProbe block;
  __shared__ unsigned long long seen[kSeenSlots];
  for (uint32_t s = threadIdx.x; s < kSeenSlots; s += kThreads) seen[s] = 0;
  if (threadIdx.x == 0) {
    block = {};
    run = StartLookup(scratch.group, *token, options.replayable, blockIdx.x == 0).run;
  }
  __syncthreads();
  if (!run) return;
  if (options.is_first) {
    for (uint32_t slot = blockIdx.x * kThreads + threadIdx.x; slot <= scratch.miss_mask;
         slot += gridDim.x * kThreads) {
      scratch.miss_slots[slot] = 0;
    }
  }

  int64_t row = kRowPadded;
  uint64_t check = 0;
  if (in_range) {
    if (feature.padding == Padding::kLengths && i % feature.bag_length == 0) {
      const int32_t length = feature.lengths[i / feature.bag_length];
      if (length < 0 || length > feature.bag_length) {
        if (atomicExch(&scratch.group->bad_call, 1) == 0) {
          scratch.group->error = DeviceError::kBadLengths;
          scratch.group->error_got = length;
          scratch.group->error_expected = static_cast<int32_t>(feature.bag_length);
        }
      }
    }
    const uint64_t place = (static_cast<uint64_t>(id) + 1) * 0x9E3779B97F4A7C15ull;
    check = place;
    if (IsMeant(feature, i)) {
      const KeyHash hash = HashKey(key);
      check = Mix64(hash.bits + place + static_cast<uint64_t>(feature.table));
      row = FindRowOnDevice(table.index, hash, key);
      if (row < 0) row = kRowWaits;
    }
  }

  // Hits: the first one to stamp the row with this epoch numbers it.
  bool first = false;
  uint64_t* stamp = table.stamps + (row >= 0 ? row : 0);
  if (row >= 0 && IsFirstOfBlock(row, seen)) {
    const unsigned long long old = *reinterpret_cast<volatile unsigned long long*>(stamp);
    if (old >> 32 != scratch.epoch) {
      first = atomicCAS(reinterpret_cast<unsigned long long*>(stamp), old,
                        static_cast<unsigned long long>(scratch.epoch) << 32) == old;
    }
  }
  const bool missed = row == kRowWaits;
  const unsigned padded = __ballot_sync(kFullWarp, in_range && row == kRowPadded);
  uint32_t unique = WarpAllocate(first, &block.uniques);
  uint32_t miss = WarpAllocate(missed, &block.misses);
  const unsigned long long warp_check = WarpSum(static_cast<unsigned long long>(check));
  if (Lane() == 0) {
    atomicAdd(&block.checksum, warp_check);
    if (padded != 0) atomicAdd(&block.padded, static_cast<uint32_t>(__popc(padded)));
  }
  __syncthreads();
  if (threadIdx.x == 0) BookBlock(&block, &counts, scratch);
  __syncthreads();
  unique += block.first_unique;
  miss += block.first_miss;
  if (first) {
    tables.unique_rows[feature.call_table][unique] = row;
    *stamp = static_cast<uint64_t>(scratch.epoch) << 32 | unique;
  }
  const bool copied = options.copies && feature.combiner == Combiner::kNone;
  if (missed) {
    scratch.misses[miss] = {key,
                            static_cast<uint32_t>(id),
                            feature.table,
                            feature.call_table,
                            static_cast<int32_t>(miss),
                            kRowRefused,
                            copied ? feature.rows_out + i * table.layout.dim : nullptr};
    row = kRowWaits - int64_t{miss};
  }
  if (in_range) scratch.rows[id] = row;
}

// Row numbers of a training lookup, once absent keys are rows; also writes the id's
// position among the unique rows.
struct TrainRows {
  LookupScratch scratch;

  __device__ bool Poisoned() const { return !Runs(*scratch.group); }
  __device__ int64_t Resolve(const TableView&, const FeatureParam& feature, int64_t i) const {
    return ResolvedRow(scratch, scratch.rows[feature.first_id + i]);
  }
  template <int N>
  __device__ void Resolve(const TableView&, const FeatureParam& feature, int64_t first, int64_t end,
                          int64_t (&rows)[N]) const {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const int64_t i = first + 32 * n;
      rows[n] = i < end ? scratch.rows[feature.first_id + i] : int64_t{kRowPadded};
    }
#pragma unroll
    for (int n = 0; n < N; ++n) rows[n] = ResolvedRow(scratch, rows[n]);
  }
  __device__ int32_t NumberOf(const TableView& table, int64_t row) const {
    return row >= 0 ? static_cast<int32_t>(table.stamps[row] & 0xFFFFFFFFu)
                    : static_cast<int32_t>(row);
  }
  __device__ void Number(const TableView& table, const FeatureParam& feature, int64_t i,
                         int64_t row) const {
    feature.index_out[i] = NumberOf(table, row);
  }
  __device__ void Poison(const FeatureParam& feature, int64_t i) const {
    feature.index_out[i] = kRefused;
  }
  __device__ void Count(const FeatureParam& feature, const IdCounts& counts) const {
    if (counts.missing != 0 && Lane() == 0) {
      atomicAdd(&scratch.counts[feature.call_table].refused,
                static_cast<unsigned long long>(counts.missing));
    }
  }
};

// Numbers the ids of copied features and copies their rows. New rows are made here, in
// the table by the id that inserted the key and in the output by all of its ids.
template <class List>
__global__ void __launch_bounds__(kThreads, 4)
    CopyKernel(const __grid_constant__ List list, TrainRows rows) {
  __shared__ RingMemory<kThreads, kGatherStages, 1> memory;
  const LookupScratch& scratch = rows.scratch;
  const FeatureParam& feature = FeatureOfBlock(list);
  const TableView& table = scratch.tables[feature.table];
  const int64_t first =
      int64_t{blockIdx.x - feature.first_block} * kThreads + threadIdx.x / 32 * 32;
  const int64_t i = first + Lane();
  const bool is_id = i < feature.num_ids;
  const int64_t probed = is_id ? scratch.rows[feature.first_id + i] : int64_t{kRowPadded};
  if (rows.Poisoned()) {
    if (is_id) rows.Poison(feature, i);
    PoisonRows(table, feature, first, max(int64_t{0}, min(int64_t{32}, feature.num_ids - first)));
    return;
  }
  const int64_t row = ResolvedRow(scratch, probed);
  // Loaded before the copies, stored behind them.
  const int32_t number = rows.NumberOf(table, row);
  IdCounts counts;
  counts.missing = static_cast<unsigned>(__popc(__ballot_sync(kFullWarp, row == kRowRefused)));
  rows.Count(feature, counts);
  const unsigned absent = __ballot_sync(kFullWarp, is_id && row < 0);
  const bool is_new = probed <= kRowWaits && row >= 0;
  WriteRows(memory.Mine(), table, feature, first, is_new ? int64_t{kRowPadded} : row, absent, row);
  const unsigned fresh = __ballot_sync(kFullWarp, is_new);
  if (fresh != 0) {
    // The ring is empty by now.
    NewRow* new_rows = reinterpret_cast<NewRow*>(memory.OfWarp());
    __syncwarp();
    if (is_new) {
      const int64_t m = kRowWaits - probed;
      const Miss& miss = scratch.misses[m];
      new_rows[RankAmong(fresh)] = {miss.key, miss.winner == m ? table.Row(row) : nullptr,
                                    feature.rows_out + i * table.layout.dim};
    }
    __syncwarp();
    InitRowsByWarp(table, new_rows, __popc(fresh));
  }
  if (is_id) feature.index_out[i] = number;
}

}  // namespace dynemb
