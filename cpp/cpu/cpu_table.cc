#include "cpu/cpu_table.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "core/victim.h"

namespace dynemb {

Status CpuTable::Init() {
  RoomPlan plan;
  DYNEMB_RETURN_IF_ERROR(CheckFirstRoom(config_, &plan));
  DYNEMB_RETURN_IF_ERROR(pool_.Grow(plan.room.row_capacity));
  DYNEMB_RETURN_IF_ERROR(index_.Grow(plan.room.num_buckets));
  return admitter_.Init();
}

Status CpuTable::MakeRoom(int64_t new_rows, int64_t* granted) {
  index_.TidyIfWorn();
  Room now{index_.view().num_buckets, pool_.capacity()};
  RoomPlan plan = PlanRoom(config_, now, pool_.size(), new_rows);
  *granted = plan.granted;
  if (plan.granted < new_rows && config_.on_full == OnFull::kError) {
    return FullTable(config_, now, pool_.size(), new_rows, plan.granted);
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

EvictedKey CpuTable::LeaveRow(Key key, RowIndex row) {
  const int64_t position = static_cast<int64_t>(row);
  last_evicted_epoch_ =
      std::max(last_evicted_epoch_, static_cast<uint32_t>(pool_.stamps()[position] >> 32));
  return {key, pool_.scores()[position]};
}

void CpuTable::Record(const EvictedKey& evicted) {
  if (std::ssize(evicted_.keys) < config_.recorded_evictions) {
    evicted_.keys.push_back(evicted);
  } else if (config_.recorded_evictions > 0) {
    ++evicted_.lost;
  }
}

uint64_t CpuTable::ScoreNow() {
  const uint64_t lookups = static_cast<uint64_t>(counters.lookups);
  switch (config_.score) {
    case ScoreKind::kStep:
      return lookups;
    case ScoreKind::kTime:
      return Nanoseconds();
    case ScoreKind::kDecayed:
      return DecayedTouch(lookups, static_cast<uint64_t>(config_.half_life));
    case ScoreKind::kNone:
    case ScoreKind::kFrequency:
    case ScoreKind::kCustom:
      break;
  }
  return 0;
}

uint64_t CpuTable::TtlNow() {
  if (config_.ttl_clock == TtlClock::kNanoseconds) return Nanoseconds();
  return static_cast<uint64_t>(counters.lookups);
}

uint64_t CpuTable::Nanoseconds() {
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
  for (int i = 0; i < layout_.dim; ++i) space[i] = layout_.LoadColumn(row, i);
  return space;
}

void CpuTable::SetEmbedding(const float* values, float* row) const {
  if (keeps_floats()) {
    std::copy_n(values, layout_.dim, row);
    return;
  }
  for (int i = 0; i < layout_.dim; ++i) layout_.StoreColumn(values[i], row, i);
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

template <class Goes>
std::vector<Entry> CpuTable::EraseWhere(Goes&& goes) {
  const IndexView& view = index_.view();
  std::vector<Entry> gone;
  for (uint64_t b = 0; b < view.num_buckets; ++b) {
    for (int slot = 0; slot < kSlotsPerBucket; ++slot) {
      const SlotRef ref{BucketIndex{b}, slot};
      if (view.Sector(ref.bucket).tags[slot] == 0) continue;
      const Entry entry = view.EntryAt(ref);
      if (!goes(static_cast<int64_t>(entry.Row()))) continue;
      index_.Erase(ref);
      gone.push_back(entry);
    }
  }
  std::sort(gone.begin(), gone.end(), [](const Entry& a, const Entry& b) {
    return HashKey(a.key).bits < HashKey(b.key).bits;
  });
  for (const Entry& entry : gone) pool_.GiveBack(entry.Row());
  return gone;
}

int64_t CpuTable::EraseBelow(uint64_t score) {
  return std::ssize(EraseWhere([&](int64_t row) { return pool_.scores()[row] < score; }));
}

void CpuTable::Expire(uint32_t oldest_pinned) {
  if (config_.ttl_clock == TtlClock::kNone) return;
  // The lookup that is about to come is one more.
  const bool by_lookups = config_.ttl_clock == TtlClock::kLookups;
  const uint64_t now = TtlNow() + (by_lookups ? 1 : 0);
  const uint64_t ttl = static_cast<uint64_t>(config_.ttl);
  if (now - last_expiry_ < std::max<uint64_t>(ttl / 8, 1)) return;
  last_expiry_ = now;
  const uint64_t* touches = config_.StoresTouches() ? pool_.touches() : pool_.scores();
  const RowMarks marks{pool_.stamps(), pool_.scores(), oldest_pinned};
  const std::vector<Entry> gone = EraseWhere(
      [&](int64_t row) { return touches[row] + ttl < now && !IsPinned(marks, RowIndex{row}); });
  for (const Entry& entry : gone) Record(LeaveRow(entry.key, entry.Row()));
  counters.expired += std::ssize(gone);
}

void CpuTable::EraseAll() {
  index_.EraseAll();
  pool_.GiveBackAll();
  admitter_.Forget();
}

TableStats CpuTable::Stats() const {
  TableStats stats{counters,
                   pool_.size(),
                   static_cast<int64_t>(index_.view().num_buckets) * kSlotsPerBucket,
                   index_.bytes(),
                   0,
                   admitter_.bytes()};
  const Room room{index_.view().num_buckets, pool_.capacity()};
  stats.row_bytes = RoomBytes(config_, room) - stats.index_bytes;
  stats.counters.found = found.load();
  stats.counters.missing = missing.load();
  stats.counters.padded += padded.load();
  return stats;
}

}  // namespace dynemb
