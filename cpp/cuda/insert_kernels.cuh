// Absent keys of a probed call become rows of tables that evict nothing.
#pragma once  // included by lookup.cu alone

#include "cuda/call_state.cuh"
#include "cuda/new_rows.cuh"

namespace dynemb {

// Id i of a feature brings a new key and gives it its row, if there is one: places the
// key, and claims the row under its number, behind those that the probe has claimed.
// Returns the row or kRowRefused.
template <class Tables>
__device__ int64_t PlaceNewKey(const Tables& tables, const LookupScratch& scratch,
                               const FeatureParam& feature, int64_t i, int64_t code) {
  const ResolvedId resolved = Resolve(tables, scratch, feature.call_table, code);
  if (resolved.nth < 0) return resolved.row;
  const TableView& table = scratch.tables[feature.table];
  const uint32_t unique = static_cast<uint32_t>(scratch.counts[feature.call_table].unique +
                                                static_cast<int32_t>(resolved.nth));
  tables.unique_rows[feature.call_table][unique] = resolved.row;
  table.stamps[resolved.row] = static_cast<uint64_t>(scratch.epoch) << 32 | unique;
  PlaceAbsentOnDevice(table.index,
                      Entry{LoadKeyOnDevice(feature, i), static_cast<uint64_t>(resolved.row)});
  return resolved.row;
}

// New keys of features whose rows are not copied: pooled ones, and calls that return
// none. One thread an id; warps write the first values together. (Of copied features the
// copy does both.) Keys of bounded tables have their places by now.
template <class List, class Tables>
__global__ void __launch_bounds__(kThreads)
    InsertKernel(const __grid_constant__ List list, const __grid_constant__ Tables tables,
                 LookupScratch scratch) {
  __shared__ NewRow new_rows[kThreads];
  const FeatureParam& feature = FeatureOfBlock(list);
  if (feature.combiner == Combiner::kNone && feature.rows_out != nullptr) return;
  if (!Runs(*scratch.group)) return;
  const int64_t i = int64_t{blockIdx.x - feature.first_block} * kThreads + threadIdx.x;
  const int64_t code = i < feature.num_ids ? scratch.rows[feature.first_id + i] : kRowPadded;
  const TableView& table = scratch.tables[feature.table];
  int64_t row = kRowPadded;
  if (IsNewRow(code) || IsMadeRow(code)) row = PlaceNewKey(tables, scratch, feature, i, code);
  const bool fresh = row >= 0;
  const unsigned mask = __ballot_sync(kFullWarp, fresh);
  if (mask == 0) return;
  NewRow* mine = new_rows + threadIdx.x / 32 * 32;
  if (fresh) mine[RankAmong(mask)] = {LoadKeyOnDevice(feature, i), table.Row(row), 0};
  __syncwarp();
  if (feature.are_16) {
    InitRowsByWarp<Elements16>(table, nullptr, mine, __popc(mask));
  } else {
    InitRowsByWarp<FloatElements>(table, nullptr, mine, __popc(mask));
  }
}

}  // namespace dynemb
