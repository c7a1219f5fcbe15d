// Writes given rows for given keys, new or not; the last of equal keys stays.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "cpu/cpu_backend.h"
#include "cpu/key_numbers.h"
#include "cpu/key_set.h"

namespace dynemb {
namespace {

int64_t CountNew(const CpuTable& table, std::span<const Key> keys) {
  KeySet absent(static_cast<int64_t>(keys.size()));
  for (Key key : keys) {
    if (FindRow(table.index(), HashKey(key), key) == kNoRow) absent.Insert(key);
  }
  return absent.size();
}

std::vector<NewKey> Absent(const CpuTable& table, std::span<const Key> keys) {
  KeyNumbers numbers(std::ssize(keys));
  for (Key key : keys) {
    if (FindRow(table.index(), HashKey(key), key) == kNoRow) numbers.Number(key);
  }
  std::vector<NewKey> absent;
  for (Key key : numbers.keys()) absent.push_back({key});
  return absent;
}

// No key of the batch makes way for another one.
void PinPresent(CpuTable& table, std::span<const Key> keys, uint32_t epoch) {
  for (Key key : keys) {
    const RowIndex row = FindRow(table.index(), HashKey(key), key);
    if (row != kNoRow) table.Pin(row, epoch);
  }
}

// State as dynemb_jax sees it ([vectors | scalars] without padding) into a row.
void WriteState(const RowLayout& layout, const float* state, float* row) {
  for (int v = 0; v < layout.vectors; ++v) {
    std::copy_n(state + int64_t{v} * layout.dim, layout.dim, row + layout.VectorOffset(v));
  }
  std::copy_n(state + int64_t{layout.vectors} * layout.dim, layout.scalars,
              row + layout.ScalarOffset());
}

}  // namespace

Status CpuBackend::Assign(const Executor&, TokenPair token, const AssignBatch& batch) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  DYNEMB_RETURN_IF_ERROR(CheckToken(*token.in));
  CpuTable& target = table(batch.keys.table);
  const RowLayout& layout = target.layout();
  const std::span<const Key> keys = batch.keys.Meant();
  int64_t room = 0;
  DYNEMB_RETURN_IF_ERROR(target.MakeRoom(CountNew(target, keys), &room));
  const uint32_t epoch = NextEpoch();
  const uint64_t score = target.ScoreNow(), time = target.TtlNow();
  if (target.is_bounded()) {
    PinPresent(target, keys, epoch);
    const bool evicts = target.config().on_full == OnFull::kEvict;
    std::vector<NewKey> absent = Absent(target, keys);
    target.InsertAll({room, evicts, epoch, OldestPinned(epoch)}, absent);
    room = 0;
  }
  for (int64_t i = 0; i < std::ssize(keys); ++i) {
    Key key = keys[static_cast<size_t>(i)];
    KeyHash hash = HashKey(key);
    RowIndex row = FindRow(target.index(), hash, key);
    bool inserted = false;
    if (row == kNoRow && room > 0) {
      row = target.FindOrInsert(hash, key, &inserted);
      --room;
    }
    if (row == kNoRow) {
      ++target.counters.assign_refused;
      continue;
    }
    if (target.is_bounded()) target.Score(row, score, time);
    target.SetEmbedding(batch.rows + i * layout.dim, target.Row(row));
    target.InitState(row, key);
    if (batch.state != nullptr) {
      WriteState(layout, batch.state + i * layout.StateFloats(), target.Row(row));
    }
    ++target.counters.assigned;
  }
  Advance(token);
  return Status();
}

}  // namespace dynemb
