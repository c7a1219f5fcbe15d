#include "cpu/cpu_table.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "core/victim.h"

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
    return Full(now, new_rows, plan.granted);
  }
  DYNEMB_RETURN_IF_ERROR(pool_.Grow(plan.room.row_capacity));
  DYNEMB_RETURN_IF_ERROR(index_.Grow(plan.room.num_buckets));
  for (uint64_t n = now.num_buckets; n < plan.room.num_buckets; n *= 2) ++counters.growths;
  return Status();
}

Status CpuTable::Full(const Room& now, int64_t new_rows, int64_t granted) const {
  const bool by_rows = config_.max_rows >= 0 && pool_.size() + granted >= config_.max_rows;
  const char* limit = by_rows ? "max_rows" : "max_bytes";
  return TableFull("table '", config_.name, "' is full: it holds ", pool_.size(), " rows in ",
                   RoomBytes(config_, now), " bytes, ", new_rows, " new keys came and ", granted,
                   " of them fit into ", limit, "=", by_rows ? config_.max_rows : config_.max_bytes,
                   "; raise ", limit, ", erase keys, or set on_full=\"drop\"",
                   is_bounded() ? " or \"evict\"" : "", ".");
}

RowIndex CpuTable::FindOrInsert(KeyHash hash, Key key, bool* inserted) {
  Entry& entry = index_.FindOrPlace(hash, key, inserted);
  if (*inserted) entry.row_and_spare = static_cast<uint64_t>(pool_.Take());
  return entry.Row();
}

RowIndex CpuTable::EvictAndInsert(KeyHash hash, Key key, uint32_t oldest_pinned) {
  const RowMarks marks{pool_.stamps(), pool_.scores(), oldest_pinned};
  const SlotRef victim = FindVictim(index_.view(), hash, marks);
  if (victim.slot < 0) return kNoRow;
  const Key victim_key = index_.view().EntryAt(victim).key;
  const RowIndex row = index_.Erase(victim);
  const int64_t position = static_cast<int64_t>(row);
  last_evicted_epoch_ =
      std::max(last_evicted_epoch_, static_cast<uint32_t>(pool_.stamps()[position] >> 32));
  ++counters.evicted;
  if (std::ssize(evicted_.keys) < config_.recorded_evictions) {
    evicted_.keys.push_back({victim_key, pool_.scores()[position]});
  } else if (config_.recorded_evictions > 0) {
    ++evicted_.lost;
  }
  bool inserted = false;
  index_.FindOrPlace(hash, key, &inserted).row_and_spare = static_cast<uint64_t>(row);
  return row;
}

uint64_t CpuTable::ScoreNow() {
  if (config_.score == ScoreKind::kStep) return static_cast<uint64_t>(counters.lookups);
  if (config_.score != ScoreKind::kTime) return 0;
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(since_1970).count();
  return last_time_ = std::max(last_time_, static_cast<uint64_t>(now));
}

void CpuTable::InitEmbedding(RowIndex row, Key key) {
  if (keeps_floats()) return InitRowOnHost(config_.initializer, key, layout_.dim, Row(row));
  thread_local Scratch<float> scratch;
  float* values = scratch.Get(layout_.dim);
  InitRowOnHost(config_.initializer, key, layout_.dim, values);
  SetEmbedding(values, Row(row));
}

float* CpuTable::DecodeEmbedding(const float* row, float* space) const {
  const uint16_t* bits = reinterpret_cast<const uint16_t*>(row);
  for (int i = 0; i < layout_.dim; ++i) space[i] = FloatOf16(layout_.type, bits[i]);
  return space;
}

void CpuTable::SetEmbedding(const float* values, float* row) const {
  if (keeps_floats()) {
    std::copy_n(values, layout_.dim, row);
    return;
  }
  uint16_t* bits = reinterpret_cast<uint16_t*>(row);
  for (int i = 0; i < layout_.dim; ++i) bits[i] = Nearest16(layout_.type, values[i]);
}

void CpuTable::UpdateEmbedding(const float* values, int64_t step, float* row) const {
  if (values == row) return;
  if (!layout_.keeps_key) return SetEmbedding(values, row);
  RoundRow(layout_.type, RowRounding(config_.initializer.stream, step), layout_.LoadKey(row),
           values, layout_.dim, reinterpret_cast<uint16_t*>(row));
}

void CpuTable::InitState(RowIndex row, Key key) {
  float* base = Row(row);
  if (config_.outside.has_value()) {
    for (int v = 0; v < layout_.vectors; ++v) {
      std::fill_n(base + layout_.VectorOffset(v), layout_.dim,
                  config_.outside->vectors[static_cast<size_t>(v)]);
    }
    layout_.StoreScalars(config_.outside->scalars.data(), base);
  } else {
    float* state = base + layout_.VectorOffset(0);
    std::fill(state, base + layout_.ScalarOffset(), config_.optimizer.initial_state);
    std::fill(base + layout_.ScalarOffset(), base + layout_.StrideFloats(),
              config_.optimizer.initial_scalar);
  }
  layout_.StoreKey(key, base);
}

void CpuTable::FillMissing(Key key, float* out) const {
  if (config_.missing_is_initial) {
    InitRowOnHost(config_.initializer, key, layout_.dim, out);
  } else {
    std::fill(out, out + layout_.dim, config_.missing_value);
  }
  if (keeps_floats()) return;
  for (int i = 0; i < layout_.dim; ++i) {
    out[i] = FloatOf16(layout_.type, Nearest16(layout_.type, out[i]));
  }
}

bool CpuTable::Erase(Key key) {
  RowIndex row = index_.Erase(key);
  if (row == kNoRow) return false;
  pool_.GiveBack(row);
  return true;
}

int64_t CpuTable::EraseBelow(uint64_t score) {
  const IndexView& view = index_.view();
  std::vector<RowIndex> freed;
  for (uint64_t b = 0; b < view.num_buckets; ++b) {
    for (int slot = 0; slot < kSlotsPerBucket; ++slot) {
      const SlotRef ref{BucketIndex{b}, slot};
      if (view.Sector(ref.bucket).tags[slot] == 0) continue;
      if (pool_.scores()[static_cast<int64_t>(view.EntryAt(ref).Row())] >= score) continue;
      freed.push_back(index_.Erase(ref));
    }
  }
  std::sort(freed.begin(), freed.end(), std::greater<>());
  for (RowIndex row : freed) pool_.GiveBack(row);
  return std::ssize(freed);
}

void CpuTable::EraseAll() {
  index_.EraseAll();
  pool_.GiveBackAll();
}

TableStats CpuTable::Stats() const {
  TableStats stats{counters, pool_.size(),
                   static_cast<int64_t>(index_.view().num_buckets) * kSlotsPerBucket,
                   index_.bytes(), pool_.capacity() * RowBytes(config_)};
  stats.counters.found = found.load();
  stats.counters.missing = missing.load();
  stats.counters.padded += padded.load();
  return stats;
}

}  // namespace dynemb
