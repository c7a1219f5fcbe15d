// Find or insert, in the order of the launches: probe, claim and copy; make absent keys
// unique; insert them; number. A claim is a stamp of this call's epoch:
// whoever sets it first gives the row its number among the call's unique rows.
#pragma once  // included by lookup.cu alone

#include <cooperative_groups.h>

#include "cuda/call_state.cuh"
#include "cuda/gather_kernels.cuh"

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
  bool copies;      // rows that are found go out at once
};

// Positions for the lanes that want one, from a counter of all blocks. Needed late, so
// nobody waits for the atomic.
struct WarpPlaces {
  unsigned wanted;
  uint32_t first;

  template <class Counter>
  __device__ WarpPlaces(bool wants, Counter* counter) : wanted(__ballot_sync(kFullWarp, wants)) {
    first = 0;
    if (wanted != 0 && Lane() == 0) {
      first = static_cast<uint32_t>(atomicAdd(counter, static_cast<Counter>(__popc(wanted))));
    }
  }
  __device__ uint32_t Mine() const {
    return __shfl_sync(kFullWarp, first, 0) +
           static_cast<uint32_t>(__popc(wanted & ((1u << Lane()) - 1)));
  }
};

// One thread an id: finds its row, claims it, and copies it where it is copied. What
// depends on absent keys follows in later kernels.
template <class List, class Tables>
__global__ void __launch_bounds__(kThreads, 5)
    ProbeKernel(const __grid_constant__ List list, const __grid_constant__ Tables tables,
                LookupScratch scratch, const int32_t* token, ProbeOptions options) {
  __shared__ RingMemory<kThreads, kGatherStages, 1> memory;
  const FeatureParam& feature = FeatureOfBlock(list);
  const TableView& table = scratch.tables[feature.table];
  CallCounts& counts = scratch.counts[feature.call_table];
  const int64_t i = int64_t{blockIdx.x - feature.first_block} * kThreads + threadIdx.x;
  const bool in_range = i < feature.num_ids;
  const int64_t id = feature.first_id + i;
  const Key key = in_range ? LoadKeyOnDevice(feature, i) : 0;

  bool run = false;
  if (Lane() == 0) {
    const bool writes = blockIdx.x == 0 && threadIdx.x == 0;
    run = StartLookup(scratch.group, *token, options.replayable, writes).run;
  }
  if (!__shfl_sync(kFullWarp, run, 0)) return;
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
  if (row >= 0) {
    const unsigned long long old = *reinterpret_cast<volatile unsigned long long*>(stamp);
    if (old >> 32 != scratch.epoch) {
      first = atomicCAS(reinterpret_cast<unsigned long long*>(stamp), old,
                        static_cast<unsigned long long>(scratch.epoch) << 32) == old;
    }
  }
  const bool missed = row == kRowWaits;
  const unsigned padded = __ballot_sync(kFullWarp, in_range && row == kRowPadded);
  const WarpPlaces uniques(first, &counts.unique);
  const WarpPlaces misses(missed, scratch.miss_count);
  const unsigned long long warp_check = WarpSum(static_cast<unsigned long long>(check));
  if (Lane() == 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&scratch.group->ids_checksum), warp_check);
    if (padded != 0) {
      atomicAdd(&counts.padded, static_cast<unsigned long long>(__popc(padded)));
    }
  }

  const bool copied = options.copies && feature.combiner == Combiner::kNone;
  if (copied) WriteRows(memory.Mine(), table, feature, i - Lane(), row, padded);

  const uint32_t unique = uniques.Mine(), miss = misses.Mine();
  if (first) {
    tables.unique_rows[feature.call_table][unique] = row;
    *stamp = static_cast<uint64_t>(scratch.epoch) << 32 | unique;
  }
  if (missed) {
    scratch.misses[miss] = {key,
                            static_cast<uint32_t>(id),
                            feature.table,
                            feature.call_table,
                            static_cast<int32_t>(miss),
                            copied ? feature.rows_out + i * table.layout.dim : nullptr};
    row = kRowWaits - int64_t{miss};
  }
  if (in_range) scratch.rows[id] = row;
}

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

// Columns [column, column + 4) of a row of the output, which is not padded.
__device__ inline void StoreColumns(const float4& four, int column, int dim, float* row) {
  if (dim % 4 == 0) {
    __stcs(reinterpret_cast<float4*>(row + column), four);
    return;
  }
  const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if (column + c < dim) row[column + c] = values[c];
  }
}

// Writes new rows of one table, those of the lanes in `rows`, and hands them out. Teams
// of lanes take a row each.
__device__ inline void InitRowsByWarp(const TableView& table, unsigned rows, const Miss& miss,
                                      int64_t row) {
  const RowInitializer& init = table.initializer;
  const int64_t state = table.layout.VectorOffset(0), scalars = table.layout.ScalarOffset();
  const Teams<4> teams(LanesOfRow(static_cast<int>(state), 1));
  // The team's own rows: every so many of them.
  unsigned mine = rows;
  for (int skipped = 0; skipped < teams.team; ++skipped) mine &= mine - 1;
  while (__any_sync(kFullWarp, mine != 0)) {
    const int source = mine == 0 ? 0 : __ffs(static_cast<int>(mine)) - 1;
    const Key of = __shfl_sync(kFullWarp, miss.key, source);
    float* out = reinterpret_cast<float*>(
        __shfl_sync(kFullWarp, reinterpret_cast<unsigned long long>(miss.row_out), source));
    float* values = table.Row(__shfl_sync(kFullWarp, row, source));
    if (mine != 0) {
      // Rows are padded to 16 bytes, so the last block may be written whole.
      for (int64_t column = teams.column(); column < state; column += teams.columns()) {
        float4 four = make_float4(init.parameter, init.parameter, init.parameter, init.parameter);
        if (init.kind != InitializerKind::kConstant) {
          const PhiloxBlock random = Philox4x32(
              {{static_cast<uint32_t>(of), static_cast<uint32_t>(of >> 32),
                static_cast<uint32_t>(column / 4), 0u}},
              static_cast<uint32_t>(init.stream), static_cast<uint32_t>(init.stream >> 32));
          four =
              make_float4(InitialValue(init, random.word[0]), InitialValue(init, random.word[1]),
                          InitialValue(init, random.word[2]), InitialValue(init, random.word[3]));
        }
        *reinterpret_cast<float4*>(values + column) = four;
        if (out != nullptr) StoreColumns(four, static_cast<int>(column), table.layout.dim, out);
      }
      for (int64_t i = state + teams.member; i < table.stride_floats; i += teams.lanes) {
        values[i] = i < scalars ? table.initial_state : table.initial_scalar;
      }
    }
    for (int taken = 0; taken < teams.count(); ++taken) mine &= mine - 1;
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

// Elected misses become rows. Lanes place their keys; the warp then writes the
// new rows together.
template <class Tables>
__device__ void InsertElected(const Tables& tables, const LookupScratch& scratch, uint32_t count) {
  const bool replay = scratch.group->may_replay != 0;
  const uint32_t warps = gridDim.x * (kThreads / 32);
  const uint32_t warp = (blockIdx.x * kThreads + threadIdx.x) / 32;
  for (uint32_t base = warp * 32; base < count; base += warps * 32) {
    const uint32_t m = base + static_cast<uint32_t>(Lane());
    Miss miss{};
    bool elected = false;
    if (m < count) {
      miss = scratch.misses[m];
      elected = miss.winner == static_cast<int32_t>(m);
    }
    CallCounts& counts = scratch.counts[miss.call_table];
    const int32_t nth = TakeOfTable(elected && !replay, miss.call_table, &counts.new_rows);
    const bool fits = elected && !replay && nth < tables.room[miss.call_table];
    const int32_t unique = TakeOfTable(fits, miss.call_table, &counts.unique);
    int64_t row = -1;
    if (fits) {
      const TableState& state = scratch.states[miss.table];
      const TableView& table = scratch.tables[miss.table];
      row = nth < state.free_count ? table.free_rows[state.free_count - 1 - nth]
                                   : state.high_water + (nth - state.free_count);
      tables.unique_rows[miss.call_table][unique] = row;
      table.stamps[row] =
          static_cast<uint64_t>(scratch.epoch) << 32 | static_cast<uint32_t>(unique);
      PlaceAbsentOnDevice(table.index, Entry{miss.key, static_cast<uint64_t>(row)});
    }
    if (elected) scratch.rows[miss.id] = fits ? row : int64_t{kRowRefused};
    unsigned fresh = __ballot_sync(kFullWarp, fits);
    while (fresh != 0) {
      const int32_t table = __shfl_sync(kFullWarp, miss.table, __ffs(static_cast<int>(fresh)) - 1);
      const unsigned same = __ballot_sync(kFullWarp, fits && miss.table == table);
      InitRowsByWarp(scratch.tables[table], same, miss, row);
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
inline constexpr unsigned kMissBlocksPerSm = 5;

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

// Row numbers of a training lookup, once absent keys are rows; also writes the id's
// position among the unique rows.
struct TrainRows {
  LookupScratch scratch;

  __device__ bool Poisoned() const { return !Runs(*scratch.group); }
  __device__ int64_t Resolve(const TableView&, const FeatureParam& feature, int64_t i) const {
    return ResolvedRow(scratch, scratch.rows[feature.first_id + i]);
  }
  __device__ void Number(const TableView& table, const FeatureParam& feature, int64_t i,
                         int64_t row) const {
    feature.index_out[i] = row >= 0 ? static_cast<int32_t>(table.stamps[row] & 0xFFFFFFFFu)
                                    : static_cast<int32_t>(row);
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

// Numbers the ids of copied features, and copies what the probe could not: rows of
// keys that were absent more than once, and ids that got no row.
template <class List>
__global__ void __launch_bounds__(kThreads)
    NumberKernel(const __grid_constant__ List list, TrainRows rows) {
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
  if (is_id) rows.Number(table, feature, i, row);
  const unsigned refused = __ballot_sync(kFullWarp, row == kRowRefused);
  IdCounts counts;
  counts.missing = static_cast<unsigned>(__popc(refused));
  rows.Count(feature, counts);
  if (refused != 0) WriteAbsent<1>(table, feature, first, refused, row);
  unsigned late = __ballot_sync(kFullWarp, probed <= kRowWaits && row >= 0);
  const int dim = table.layout.dim;
  while (late != 0) {
    const int source = __ffs(static_cast<int>(late)) - 1;
    late &= late - 1;
    const float* from = table.Row(__shfl_sync(kFullWarp, row, source));
    float* to = feature.rows_out + (first + source) * dim;
    for (int column = Lane(); column < dim; column += 32) to[column] = from[column];
  }
}

}  // namespace dynemb
