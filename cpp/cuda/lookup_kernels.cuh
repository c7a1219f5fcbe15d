// Find or insert, in the order of the launches: probe, claim and elect; insert what is
// not copied; copy and insert. A claim is a stamp of this call's epoch: whoever sets it
// first gives the row its number among the call's unique rows. Of ids with the same
// absent key an election names the one that brings it.
#pragma once  // included by lookup.cu alone

#include "cuda/gather_kernels.cuh"
#include "cuda/insert_kernels.cuh"
#include "cuda/touch.cuh"

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
  bool replayable;      // the last lookup may be repeated
  bool touches;         // rows of bounded tables are scored
  bool lengths_passed;  // wrong lengths would have been noticed by now
  bool shows_keys;      // the call has other lists, whose ids have keys in common with these
  int lookups;          // that the call counts as
  uint64_t time;        // nanoseconds since 1970
};

// Lengths that are wrong make the whole call undone. Where rows are scored, this has to
// be known before.
__device__ inline void CheckLength(GroupState* group, const FeatureParam& feature, int64_t i) {
  const int32_t length = feature.lengths[i / feature.bag_length];
  if (length >= 0 && length <= feature.bag_length) return;
  if (atomicExch(&group->bad_call, 1) != 0) return;
  group->error = DeviceError::kBadLengths;
  group->error_got = length;
  group->error_expected = static_cast<int32_t>(feature.bag_length);
}

// One thread an id, as in the probe.
template <class List>
__global__ void __launch_bounds__(kThreads)
    CheckLengthsKernel(const __grid_constant__ List list, LookupScratch scratch,
                       const int32_t* token) {
  const FeatureParam& feature = FeatureOfBlock(list);
  if (feature.padding != Padding::kLengths) return;
  if (!StartLookup(scratch.group, *token, false, false).run) return;
  const int64_t i = int64_t{blockIdx.x - feature.first_block} * kThreads + threadIdx.x;
  if (i < feature.num_ids && i % feature.bag_length == 0) CheckLength(scratch.group, feature, i);
}

// What a block of the probe adds up before it touches what all blocks share: atomics on
// one address pass one by one, a warp each would queue for longer than the rows take.
struct BlockProbe {
  uint32_t uniques, misses, padded;
  uint32_t first_unique, first_new;
  unsigned long long checksum;
};

// The rows that a block has found, by thread, and for each of some places the last
// thread that came there. Of threads with one row a single one goes on to the claim:
// otherwise all threads with a hot key, tens of thousands, come to its stamp at once.
// Threads of two rows that share a place both go on, which costs time only.
struct BlockRows {
  static constexpr uint32_t kPlaces = 2 * kThreads;

  int64_t row_of[kThreads];
  uint32_t last[kPlaces];

  __device__ static uint32_t PlaceOf(int64_t row) {
    return static_cast<uint32_t>(row) * 0x9E3779B9u >> 23;
  }
  // All threads call Come with a row or a code, then, behind a barrier, IsRepeated.
  __device__ void Come(int64_t row) {
    row_of[threadIdx.x] = row;
    if (row >= 0) atomicExch(&last[PlaceOf(row)], threadIdx.x);
  }
  __device__ bool IsRepeated(int64_t row) const {
    const uint32_t other = last[PlaceOf(row)];
    return other != threadIdx.x && row_of[other] == row;
  }
  // The thread that goes on for this one.
  __device__ uint32_t StandsIn(int64_t row) const {
    return IsRepeated(row) ? last[PlaceOf(row)] : threadIdx.x;
  }
};
static_assert(BlockRows::kPlaces == 1 << (32 - 23));

// misses: new keys, or where they wait for what comes behind the probe, ids without a row.
__device__ inline void BookBlock(BlockProbe* block, CallCounts* counts, bool waits,
                                 const LookupScratch& scratch) {
  const BlockProbe& all = *block;
  if (all.uniques != 0) {
    block->first_unique =
        static_cast<uint32_t>(atomicAdd(&counts->unique, static_cast<int32_t>(all.uniques)));
  }
  if (all.misses != 0) {
    block->first_new = static_cast<uint32_t>(
        atomicAdd(waits ? &counts->missed : &counts->new_rows, static_cast<int32_t>(all.misses)));
  }
  if (all.padded != 0) atomicAdd(&counts->padded, static_cast<unsigned long long>(all.padded));
  atomicAdd(reinterpret_cast<unsigned long long*>(&scratch.group->ids_checksum), all.checksum);
}

// Who brings an absent key: the id, and the place where its ids have met.
struct Elected {
  int64_t id;
  uint32_t slot;
};

// The key of an id of the call. `mine`: where it is likely to be.
template <class List>
__device__ Key KeyOfId(const List& list, const FeatureParam& mine, int64_t id) {
  if (id >= mine.first_id && id < mine.first_id + mine.num_ids) {
    return LoadKeyOnDevice(mine, id - mine.first_id);
  }
  for (int f = 0; f < list.count; ++f) {
    const FeatureParam& other = list.features[f];
    if (id < other.first_id || id >= other.first_id + other.num_ids) continue;
    return LoadKeyOnDevice(other, id - other.first_id);
  }
  return 0;
}

// Of ids with the same absent key the first one to come, or (`lowest`) the first one of
// the call, which is known once all have come.
template <class List, class Tables>
__device__ Elected Elect(const List& list, const Tables& tables, const LookupScratch& scratch,
                         const FeatureParam& feature, int64_t id, Key key, bool shows,
                         bool lowest) {
  if (shows || lowest) scratch.new_keys[id] = key;
  if (shows) __threadfence();
  const uint64_t mine = static_cast<uint64_t>(scratch.epoch) << 32 | static_cast<uint64_t>(id);
  const int64_t first = tables.first_id[feature.call_table];
  const int64_t end = first + tables.unique_capacity[feature.call_table];
  uint32_t slot =
      static_cast<uint32_t>(Mix64(HashKey(key).bits + static_cast<uint64_t>(feature.table)));
  for (;; ++slot) {
    slot &= scratch.election_mask;
    unsigned long long* word = reinterpret_cast<unsigned long long*>(scratch.elections + slot);
    unsigned long long seen = *reinterpret_cast<volatile unsigned long long*>(word);
    while (seen >> 32 != scratch.epoch) {
      const unsigned long long before = atomicCAS(word, seen, mine);
      if (before == seen) return {id, slot};
      seen = before;
    }
    const int64_t other = static_cast<int64_t>(seen & 0xFFFFFFFFu);
    if (other < first || other >= end) continue;
    Key its;
    if (shows) {
      __threadfence();
      its = __ldcg(scratch.new_keys + other);
    } else {
      its = KeyOfId(list, feature, other);
    }
    if (its != key) continue;
    if (lowest && id < other) atomicMin(word, static_cast<unsigned long long>(mine));
    return {other, slot};
  }
}

// One thread an id: finds its row and claims it, or elects who brings its key. Rows are
// copied by a later kernel: in this one, under the load of the copies, the five reads
// that follow each other here take longer than both kernels apart
// (docs/decisions/0006).
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
  __shared__ LookupStart start;
  __shared__ BlockProbe block;
  __shared__ BlockRows met;
  if (threadIdx.x == 0) {
    block = {};
    start = StartLookup(scratch.group, *token, options.replayable, blockIdx.x == 0);
    if (options.lengths_passed && scratch.group->bad_call != 0) start.run = false;
  }
  __syncthreads();
  if (!start.run) return;

  const bool bounded = table.scores != nullptr;
  const bool waits = bounded || feature.is_gated;
  int64_t row = kRowPadded;
  SlotRef at{BucketIndex{0}, -1};
  uint64_t check = 0;
  Elected elected{-1, 0};
  if (in_range) {
    if (feature.padding == Padding::kLengths && i % feature.bag_length == 0) {
      CheckLength(scratch.group, feature, i);
    }
    const uint64_t place = (static_cast<uint64_t>(id) + 1) * 0x9E3779B97F4A7C15ull;
    check = place;
    if (IsMeant<true>(feature, i)) {
      const KeyHash hash = HashKey(key);
      check = Mix64(hash.bits + place + static_cast<uint64_t>(feature.table));
      const FoundEntry found = FindOnDevice(table.index, hash, key);
      row = found.row;
      at = found.at;
      if (row < 0) {
        elected = Elect(list, tables, scratch, feature, id, key, options.shows_keys, waits);
        row = kSameKey - elected.id;
      }
    }
  }

  // Hits: the first one to stamp the row with this epoch numbers it.
  bool first = false;
  uint64_t* stamp = table.stamps + (row >= 0 ? row : 0);
  met.Come(row);
  __syncthreads();
  if (row >= 0 && !met.IsRepeated(row)) {
    const unsigned long long old = *reinterpret_cast<volatile unsigned long long*>(stamp);
    if (old >> 32 != scratch.epoch) {
      first = atomicCAS(reinterpret_cast<unsigned long long*>(stamp), old,
                        static_cast<unsigned long long>(scratch.epoch) << 32) == old;
    }
  }
  if (bounded && options.touches && !start.may_replay) {
    const int64_t slot =
        row >= 0 ? static_cast<int64_t>(at.bucket) * kScoresPerBucket + at.slot : -1;
    uint32_t ids = 1;
    if (AddsUp(table.score)) {
      // One thread counts for all of its row.
      __shared__ uint32_t counted[kThreads];
      counted[threadIdx.x] = 0;
      __syncthreads();
      if (row >= 0) atomicAdd(&counted[met.StandsIn(row)], 1u);
      __syncthreads();
      ids = counted[threadIdx.x];
    }
    const uint64_t value = slot < 0 ? 0
                                    : TouchValue(table, scratch.states[feature.table], feature, i,
                                                 options.lookups, options.time);
    TouchOnDevice(table, slot, first, ids, value);
  }
  const bool missed = elected.id >= 0 && (waits || elected.id == id);
  const unsigned padded = __ballot_sync(kFullWarp, in_range && row == kRowPadded);
  uint32_t unique = WarpAllocate(first, &block.uniques);
  uint32_t nth = WarpAllocate(missed, &block.misses);
  const unsigned long long warp_check = WarpSum(static_cast<unsigned long long>(check));
  if (Lane() == 0) {
    atomicAdd(&block.checksum, warp_check);
    if (padded != 0) atomicAdd(&block.padded, static_cast<uint32_t>(__popc(padded)));
  }
  __syncthreads();
  if (threadIdx.x == 0) BookBlock(&block, &counts, waits, scratch);
  __syncthreads();
  unique += block.first_unique;
  nth += block.first_new;
  if (first) {
    tables.unique_rows[feature.call_table][unique] = row;
    *stamp = static_cast<uint64_t>(scratch.epoch) << 32 | unique;
  }
  if (missed) row = waits ? kSlot - int64_t{elected.slot} : kNewRow - int64_t{nth};
  if (in_range) scratch.rows[id] = row;
}

// Row numbers of a training lookup, once absent keys are rows; also writes the id's
// position among the unique rows.
template <class Tables>
struct TrainRows {
  LookupScratch scratch;
  Tables tables;

  __device__ bool Poisoned() const { return !Runs(*scratch.group); }
  __device__ int64_t Resolve(const TableView&, const FeatureParam& feature, int64_t i) const {
    const int64_t code = scratch.rows[feature.first_id + i];
    return dynemb::Resolve(tables, scratch, feature.call_table, code).row;
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
// the table by the id that brings the key and in the output by all of its ids. Every
// second block places the keys of new rows meanwhile: that waits for memory where
// copies fill it.
template <class Elements, class List, class Tables>
__global__ void __launch_bounds__(kThreads, 4)
    CopyKernel(const __grid_constant__ List list, const __grid_constant__ TrainRows<Tables> rows) {
  __shared__ RingMemory<kThreads, kGatherStages, 1> memory;
  const LookupScratch& scratch = rows.scratch;
  const FeatureParam& feature = FeatureOfBlock(list, blockIdx.x / 2);
  const TableView& table = scratch.tables[feature.table];
  const int64_t first =
      int64_t{blockIdx.x / 2 - feature.first_block} * kThreads + threadIdx.x / 32 * 32;
  const int64_t i = first + Lane();
  const bool is_id = i < feature.num_ids;
  if (blockIdx.x % 2 != 0) {
    if (scratch.counts[feature.call_table].new_rows == 0 || rows.Poisoned() || !is_id) return;
    const int64_t code = scratch.rows[feature.first_id + i];
    if (IsNewRow(code)) PlaceNewKey(rows.tables, scratch, feature, i, code);
    return;
  }
  const int64_t probed = is_id ? scratch.rows[feature.first_id + i] : int64_t{kRowPadded};
  if (rows.Poisoned()) {
    if (is_id) rows.Poison(feature, i);
    PoisonRows<Elements>(table, feature, first,
                         max(int64_t{0}, min(int64_t{32}, feature.num_ids - first)));
    return;
  }
  const ResolvedId resolved = Resolve(rows.tables, scratch, feature.call_table, probed);
  const int64_t row = resolved.row;
  const bool brings = row >= 0 && (IsNewRow(probed) || IsMadeRow(probed));
  const bool is_new = brings || (row >= 0 && IsSameKey(probed));
  // Loaded before the copies, stored behind them.
  int32_t number = 0;
  if (resolved.nth >= 0) {
    number = scratch.counts[feature.call_table].unique + static_cast<int32_t>(resolved.nth);
  } else if (IsMadeRow(probed)) {
    number = static_cast<int32_t>(scratch.made_numbers[feature.first_id + i]);
  } else {
    number = rows.NumberOf(table, row);
  }
  IdCounts counts;
  counts.missing = static_cast<unsigned>(__popc(__ballot_sync(kFullWarp, row == kRowRefused)));
  rows.Count(feature, counts);
  const unsigned absent = __ballot_sync(kFullWarp, is_id && row < 0);
  WriteRows<Elements>(memory.Mine(), table, feature, first, is_new ? int64_t{kRowPadded} : row,
                      absent, row);
  const unsigned fresh = __ballot_sync(kFullWarp, is_new);
  if (fresh != 0) {
    // The ring is empty by now.
    NewRow* new_rows = reinterpret_cast<NewRow*>(memory.OfWarp());
    __syncwarp();
    if (is_new) {
      new_rows[RankAmong(fresh)] = {LoadKeyOnDevice(feature, i), brings ? table.Row(row) : nullptr,
                                    i};
    }
    __syncwarp();
    InitRowsByWarp<Elements>(table, &feature, new_rows, __popc(fresh));
  }
  if (is_id) feature.index_out[i] = number;
}

}  // namespace dynemb
