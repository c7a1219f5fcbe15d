// What kernels of one call ask of its state and scratch.
#pragma once

#include "cuda/device_ops.cuh"

namespace dynemb {

// Whether the call is to be done, now that its checksum is known.
__device__ inline bool Runs(const GroupState& group) {
  // All loads at once: every kernel starts with them.
  const int32_t run = group.run, bad = group.bad_call, may_replay = group.may_replay;
  const uint64_t checksum = group.ids_checksum, last = group.last_ids_checksum;
  return run != 0 && bad == 0 && (may_replay == 0 || checksum == last);
}

// New keys of a table that get free rows in this call. A replay makes none.
template <class Tables>
__device__ int64_t FreeRows(const Tables& tables, const LookupScratch& scratch, int call_table) {
  if (scratch.group->may_replay != 0) return 0;
  const int32_t table = tables.table[call_table];
  const int64_t free_rows = scratch.tables[table].row_limit - scratch.states[table].size;
  return max(int64_t{0}, min(tables.room[call_table], free_rows));
}

// The row of new key number `nth` of a table; not beyond FreeRows.
__device__ inline int64_t NthFreeRow(const TableView& table, const TableState& state, int64_t nth) {
  return nth < state.free_count ? table.free_rows[state.free_count - 1 - nth]
                                : state.high_water + (nth - state.free_count);
}

// What became of an id that had `code` in the row array: a row, or kRowPadded or
// kRowRefused; and the number of its new key, if that is not yet in the row's stamp.
struct ResolvedId {
  int64_t row;
  int64_t nth;  // -1: see the stamp
};

template <class Tables>
__device__ ResolvedId Resolve(const Tables& tables, const LookupScratch& scratch, int call_table,
                              int64_t code) {
  if (code > kNewRow) return {code, -1};
  if (IsSameKey(code)) code = scratch.rows[kSameKey - code];
  if (IsMadeRow(code)) return {kMadeRow - code, -1};
  const int64_t nth = kNewRow - code;
  if (!IsNewRow(code) || nth >= FreeRows(tables, scratch, call_table)) return {kRowRefused, -1};
  const int32_t table = tables.table[call_table];
  return {NthFreeRow(scratch.tables[table], scratch.states[table], nth), nth};
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
                                           CallCounts* counts, int32_t CallCounts::* counter) {
  __shared__ uint32_t taken;
  __shared__ int32_t first;
  __syncthreads();
  if (threadIdx.x == 0) taken = 0;
  if (!__syncthreads_and(!wanted || table == first_table)) {
    return TakeOfTable(wanted, table, &(counts[table].*counter));
  }
  const uint32_t mine = WarpAllocate(wanted, &taken);
  __syncthreads();
  if (threadIdx.x == 0 && taken != 0) {
    first = atomicAdd(&(counts[first_table].*counter), static_cast<int32_t>(taken));
  }
  __syncthreads();
  return first + static_cast<int32_t>(mine);
}

}  // namespace dynemb
