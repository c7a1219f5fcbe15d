// Absent keys of a probed call: equal ones elect one, the elected become rows.
#pragma once  // included by lookup.cu alone

#include <cooperative_groups.h>

#include "cuda/gather_kernels.cuh"

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

// A row to be written, and where a copy of it goes (or null).
struct NewRow {
  Key key;
  float* row;
  float* out;
};

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

// Writes the values of new rows of one table; value(random) of a Philox word. Teams of
// lanes take a row each.
template <class Value>
__device__ void InitRows(const TableView& table, const NewRow* rows, int count,
                         const Value& value) {
  const int dim = table.layout.dim, padded = RowLayout::Padded(dim);
  const Teams<4> teams(LanesOfRow(padded, 1));
  const uint32_t key0 = static_cast<uint32_t>(table.initializer.stream);
  const uint32_t key1 = static_cast<uint32_t>(table.initializer.stream >> 32);
  for (int n = teams.team; n < count; n += teams.count()) {
    const NewRow one = rows[n];
    // Rows are padded to 16 bytes, so the last block may be written whole.
    for (int column = teams.column(); column < padded; column += teams.columns()) {
      const PhiloxBlock random =
          Philox4x32({{static_cast<uint32_t>(one.key), static_cast<uint32_t>(one.key >> 32),
                       static_cast<uint32_t>(column / 4), 0u}},
                     key0, key1);
      const float4 four = make_float4(value(random.word[0]), value(random.word[1]),
                                      value(random.word[2]), value(random.word[3]));
      *reinterpret_cast<float4*>(one.row + column) = four;
      if (one.out != nullptr) StoreColumns(four, column, dim, one.out);
    }
  }
}

// New rows of one table, by a warp.
__device__ inline void InitRowsByWarp(const TableView& table, const NewRow* rows, int count) {
  const RowInitializer init = table.initializer;
  switch (init.kind) {
    case InitializerKind::kConstant:
      InitRows(table, rows, count, [&](uint32_t) { return init.parameter; });
      break;
    case InitializerKind::kUniform:
      InitRows(table, rows, count, [&](uint32_t r) { return UniformValue(r, init.parameter); });
      break;
    case InitializerKind::kNormal:
    case InitializerKind::kTruncatedNormal:
      InitRows(table, rows, count, [&](uint32_t r) { return InitialValue(init, r); });
      break;
  }
  const int64_t state = table.layout.VectorOffset(0), scalars = table.layout.ScalarOffset();
  if (state == table.stride_floats) return;
  for (int n = 0; n < count; ++n) {
    for (int64_t i = state + Lane(); i < table.stride_floats; i += 32) {
      rows[n].row[i] = i < scalars ? table.initial_state : table.initial_scalar;
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

// Elected misses become rows. Threads place their keys; warps then write the new rows
// together. New rows are numbered behind those that the probe has claimed.
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
    unsigned fresh = __ballot_sync(kFullWarp, fits);
    while (fresh != 0) {
      const int32_t table = __shfl_sync(kFullWarp, miss.table, __ffs(static_cast<int>(fresh)) - 1);
      const TableView& view = scratch.tables[table];
      const unsigned same = __ballot_sync(kFullWarp, fits && miss.table == table);
      __syncwarp();
      if ((same >> Lane() & 1u) != 0) {
        mine[__popc(same & ((1u << Lane()) - 1))] = {miss.key, view.Row(row), miss.row_out};
      }
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
