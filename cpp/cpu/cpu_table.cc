#include "cpu/cpu_table.h"

#include <algorithm>
#include <cstring>

namespace dynemb {

Status CpuTable::Init() {
  RoomPlan plan;
  DYNEMB_RETURN_IF_ERROR(CheckFirstRoom(config_, &plan));
  DYNEMB_RETURN_IF_ERROR(pool_.Grow(plan.room.row_capacity));
  DYNEMB_RETURN_IF_ERROR(index_.Grow(plan.room.num_buckets));
  return Status();
}

Status CpuTable::MakeRoom(int64_t new_rows, int64_t* granted) {
  index_.TidyIfWorn();
  Room now{index_.view().num_buckets, pool_.capacity()};
  RoomPlan plan = PlanRoom(config_, now, pool_.size(), new_rows);
  *granted = plan.granted;
  if (plan.granted < new_rows && config_.on_full == OnFull::kError) {
    return TableFull("table '", config_.name, "' is full: it holds ", pool_.size(), " rows in ",
                     RoomBytes(config_, now), " bytes, ", new_rows, " new keys came and ",
                     plan.granted, " of them fit into max_bytes=", config_.max_bytes,
                     "; raise max_bytes, erase keys, or set on_full=\"drop\".");
  }
  DYNEMB_RETURN_IF_ERROR(pool_.Grow(plan.room.row_capacity));
  DYNEMB_RETURN_IF_ERROR(index_.Grow(plan.room.num_buckets));
  for (uint64_t n = now.num_buckets; n < plan.room.num_buckets; n *= 2) ++counters.growths;
  return Status();
}

RowIndex CpuTable::FindOrInsert(KeyHash hash, Key key, bool* inserted) {
  Entry& entry = index_.FindOrPlace(hash, key, inserted);
  if (*inserted) entry.row_and_spare = static_cast<uint64_t>(pool_.Take());
  return entry.Row();
}

void CpuTable::InitState(RowIndex row) {
  float* base = Row(row);
  float* state = base + layout_.VectorOffset(0);
  std::fill(state, base + layout_.ScalarOffset(), config_.optimizer.initial_state);
  std::fill(base + layout_.ScalarOffset(), base + layout_.StrideFloats(),
            config_.optimizer.initial_scalar);
}

void CpuTable::FillMissing(Key key, float* out) const {
  if (config_.missing_is_initial) {
    InitRowOnHost(config_.initializer, key, layout_.dim, out);
  } else {
    std::fill(out, out + layout_.dim, config_.missing_value);
  }
}

bool CpuTable::Erase(Key key) {
  RowIndex row = index_.Erase(key);
  if (row == kNoRow) return false;
  pool_.GiveBack(row);
  return true;
}

TableStats CpuTable::Stats() const {
  TableStats stats{counters, pool_.size(),
                   static_cast<int64_t>(index_.view().num_buckets) * kSlotsPerBucket,
                   index_.bytes(), pool_.capacity() * RowBytes(layout_)};
  stats.counters.found = found.load();
  stats.counters.missing = missing.load();
  stats.counters.padded += padded.load();
  return stats;
}

}  // namespace dynemb
