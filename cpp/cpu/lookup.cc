// Find or insert. Ids of all features of a table are one batch: probe, admit, make
// room and insert what is absent, number the distinct rows, gather.
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "cpu/cpu_backend.h"
#include "cpu/gather.h"
#include "cpu/key_numbers.h"
#include "cpu/key_set.h"
#include "cpu/probe_block.h"
#include "cpu/thread_pool.h"

namespace dynemb {
namespace {

struct FeatureWork {
  const FeatureInput* input;
  RowsOutput rows_out;
  int32_t* index_out;
  int64_t first;  // of its ids among the table's
};

struct TableWork {
  CpuTable* table;
  std::vector<FeatureWork> features;
  int64_t num_ids = 0;
  int64_t* rows = nullptr;         // [num_ids]: row numbers and kRow... codes
  int64_t* unique_rows = nullptr;  // [num_ids], an output
  int64_t num_padded = 0;
  std::vector<Miss> misses;  // in the order of the ids; then those admitted
  Admission admission;
  int64_t granted = 0;  // distinct new keys that have room
  int64_t inserted = 0;
  uint32_t epoch = 0;                      // of this pass
  uint32_t oldest_pinned = 0;              // rows claimed since make way for nobody
  bool replay = false;                     // nothing changes
  const EvictedOutput* evicted = nullptr;  // an output, if asked for
};

// Phase 1, changes nothing. Returns a checksum of the ids.
uint64_t Probe(TableWork& work) {
  std::atomic<uint64_t> checksum{0};
  std::atomic<int64_t> missing{0}, padded{0};
  for (const FeatureWork& feature : work.features) {
    int64_t* rows = work.rows + feature.first;
    auto probe_range = [&](int64_t begin, int64_t end) {
      uint64_t sum = 0;
      int64_t absent = 0, pads = 0;
      for (int64_t id = begin; id < end; id += kBlock) {
        int count = static_cast<int>(std::min<int64_t>(kBlock, end - id));
        sum += ProbeBlock(work.table->index(), *feature.input, id, count, rows + id);
        for (int i = 0; i < count; ++i) {
          absent += rows[id + i] == kRowMissing;
          pads += rows[id + i] == kRowPadded;
        }
      }
      checksum += sum;
      missing += absent;
      padded += pads;
    };
    ThreadPool::Shared().ParallelFor(feature.input->NumIds(), 4096, probe_range);
    checksum = Mix64(checksum + static_cast<uint64_t>(feature.input->NumIds()));
  }
  work.num_padded = padded;
  if (missing > 0) {
    work.misses.reserve(static_cast<size_t>(missing.load()));
    for (const FeatureWork& feature : work.features) {
      for (int64_t i = 0; i < feature.input->NumIds(); ++i) {
        if (work.rows[feature.first + i] == kRowMissing) {
          work.misses.push_back({feature.first + i, LoadKey(*feature.input, i)});
        }
      }
    }
  }
  return checksum;
}

// Phase 2, changes nothing: which absent keys are let in.
void Admit(TableWork& work) {
  const uint64_t lookup = static_cast<uint64_t>(work.table->counters.lookups) + 1;
  work.admission = work.table->admitter().Decide(lookup, &work.misses);
  for (int64_t id : work.admission.refused) work.rows[id] = kRowRefused;
}

// The same of a batch that came before: its keys may be there by now.
void AdmitAgain(TableWork& work) {
  for (int64_t id : work.table->admitter().last_refused()) work.rows[id] = kRowRefused;
}

// Phase 3, changes no key or row: room for the distinct new keys.
Status MakeRoomFor(TableWork& work) {
  if (work.misses.empty()) return Status();
  CpuTable& table = *work.table;
  int64_t bound = static_cast<int64_t>(work.misses.size());
  // Counting distinct keys exactly costs a pass; only near a limit does the
  // difference decide anything.
  int64_t room = std::min(RowLimit(table.index().num_buckets, table.config().max_load),
                          table.pool().capacity());
  if (table.pool().size() + bound > room) {
    KeySet distinct(bound);
    for (const Miss& miss : work.misses) distinct.Insert(miss.key);
    bound = distinct.size();
  }
  return table.MakeRoom(bound, &work.granted);
}

struct NewRow {
  RowIndex row;
  Key key;
};

// Phase 4, bounded tables: no hit of the batch makes way for its new keys.
void PinHits(const TableWork& work) {
  constexpr int64_t kAhead = 24;
  uint64_t* stamps = work.table->pool().stamps();
  for (int64_t i = 0; i < work.num_ids; ++i) {
    if (i + kAhead < work.num_ids && work.rows[i + kAhead] >= 0) {
      __builtin_prefetch(stamps + work.rows[i + kAhead], 1);
    }
    if (work.rows[i] >= 0) work.table->Pin(RowIndex{work.rows[i]}, work.epoch);
  }
}

void InitRows(CpuTable& table, const std::vector<NewRow>& fresh) {
  ThreadPool::Shared().ParallelFor(std::ssize(fresh), 256, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const NewRow& added = fresh[static_cast<size_t>(i)];
      table.InitEmbedding(added.row, added.key);
      table.InitState(added.row, added.key);
    }
  });
}

// Phase 5: absent keys become rows, in the order of the ids.
void Insert(TableWork& work) {
  CpuTable& table = *work.table;
  std::vector<NewRow> fresh;
  fresh.reserve(static_cast<size_t>(work.granted));
  const size_t count = work.misses.size();
  for (size_t begin = 0; begin < count; begin += kBlock) {
    size_t end = std::min(count, begin + kBlock);
    KeyHash hashes[kBlock];
    for (size_t i = begin; i < end; ++i) {
      hashes[i - begin] = HashKey(work.misses[i].key);
      const IndexView& index = table.index();
      __builtin_prefetch(&index.Sector(hashes[i - begin].Home(index.num_buckets)), 1);
    }
    for (size_t i = begin; i < end; ++i) {
      const Miss& miss = work.misses[i];
      bool inserted = false;
      // Once room is used up, only keys that this batch has inserted are found.
      const RowIndex row = std::ssize(fresh) < work.granted
                               ? table.FindOrInsert(hashes[i - begin], miss.key, &inserted)
                               : FindRow(table.index(), hashes[i - begin], miss.key);
      if (inserted) fresh.push_back({row, miss.key});
      work.rows[miss.id] = row == kNoRow ? kRowRefused : static_cast<int64_t>(row);
    }
  }
  InitRows(table, fresh);
  work.inserted = std::ssize(fresh);
}

// The same in a bounded table.
void InsertBounded(TableWork& work) {
  CpuTable& table = *work.table;
  KeyNumbers numbers(std::ssize(work.misses));
  for (const Miss& miss : work.misses) numbers.Number(miss.key);
  std::vector<NewKey> keys;
  for (Key key : numbers.keys()) keys.push_back({key});
  if (!work.replay) {
    const bool evicts = table.config().on_full == OnFull::kEvict;
    table.InsertAll({work.granted, evicts, work.epoch, work.oldest_pinned}, keys);
  }
  std::vector<NewRow> fresh;
  for (const NewKey& one : keys) {
    if (one.row != kNoRow) fresh.push_back({one.row, one.key});
    if (one.has_evicted && work.evicted != nullptr) table.scratch().evicted.push_back(one.evicted);
  }
  for (const Miss& miss : work.misses) {
    const RowIndex row = keys[numbers.Number(miss.key)].row;
    work.rows[miss.id] = row == kNoRow ? kRowRefused : static_cast<int64_t>(row);
  }
  InitRows(table, fresh);
  work.inserted = std::ssize(fresh);
}

// Phase 6: numbers the distinct rows in order of first occurrence; returns how
// many there are. A stamp of this epoch says that its row has a number, unless it
// was pinned only.
int32_t Claim(TableWork& work) {
  constexpr int64_t kAhead = 24;
  uint64_t* stamps = work.table->pool().stamps();
  const uint64_t epoch = uint64_t{work.epoch} << 32;
  int32_t count = 0;
  for (const FeatureWork& feature : work.features) {
    const int64_t* rows = work.rows + feature.first;
    const int64_t num_ids = feature.input->NumIds();
    for (int64_t i = 0; i < num_ids; ++i) {
      if (i + kAhead < num_ids && rows[i + kAhead] >= 0) {
        __builtin_prefetch(stamps + rows[i + kAhead], 1);
      }
      int64_t row = rows[i];
      if (row < 0) {
        feature.index_out[i] = static_cast<int32_t>(row);
        continue;
      }
      uint64_t& stamp = stamps[row];
      if ((stamp & ~uint64_t{0xFFFFFFFF}) != epoch || (stamp & kUnnumbered) == kUnnumbered) {
        work.unique_rows[count] = row;
        stamp = epoch | static_cast<uint32_t>(count++);
      }
      feature.index_out[i] = static_cast<int32_t>(stamp & 0xFFFFFFFF);
    }
  }
  std::fill(work.unique_rows + count, work.unique_rows + work.num_ids,
            static_cast<int64_t>(kNoRow));
  return count;
}

// Phase 7, bounded tables: every id of the batch counts.
void ScoreAll(const TableWork& work) {
  constexpr int64_t kAhead = 24;
  CpuTable& table = *work.table;
  const uint64_t now = table.ScoreNow(), time = table.TtlNow();
  for (const FeatureWork& feature : work.features) {
    const int64_t* rows = work.rows + feature.first;
    const uint64_t* given = feature.input->scores;
    const int64_t num_ids = feature.input->NumIds();
    for (int64_t i = 0; i < num_ids; ++i) {
      if (i + kAhead < num_ids && rows[i + kAhead] >= 0) {
        __builtin_prefetch(table.pool().scores() + rows[i + kAhead], 1);
      }
      if (rows[i] < 0) continue;
      table.Score(RowIndex{rows[i]}, given == nullptr ? now : given[i], time);
    }
  }
}

// Phase 8.
void GatherAll(const TableWork& work) {
  for (const FeatureWork& feature : work.features) {
    ThreadPool::Shared().ParallelFor(
        feature.input->NumOutputRows(), 512, [&](int64_t begin, int64_t end) {
          Gather(*work.table, *feature.input, work.rows + feature.first, 0, begin, end,
                 feature.rows_out);
        });
  }
}

void WriteEvicted(const TableWork& work) {
  if (work.evicted == nullptr) return;
  const EvictedOutput& out = *work.evicted;
  std::fill_n(out.keys, out.capacity, Key{0});
  std::fill_n(out.scores, out.capacity, uint64_t{0});
  int32_t count = 0;
  for (const EvictedKey& one : work.table->scratch().evicted) {
    out.keys[count] = one.key;
    out.scores[count++] = one.score;
  }
  *out.count = count;
}

void Count(TableWork& work) {
  TableCounters& counters = work.table->counters;
  const int64_t not_admitted = std::ssize(work.admission.refused);
  work.table->admitter().Remember(std::move(work.admission));
  int64_t refused = 0;
  for (const Miss& miss : work.misses) refused += work.rows[miss.id] == kRowRefused;
  int64_t ids = work.num_ids - work.num_padded;
  const bool evicts = work.table->config().on_full == OnFull::kEvict;
  counters.ids += ids;
  counters.inserted += work.inserted;
  (evicts ? counters.refused_pinned : counters.refused_budget) += refused;
  counters.refused_admission += not_admitted;
  counters.hits += ids - work.inserted - refused - not_admitted;
  counters.padded += work.num_padded;
}

}  // namespace

Status CpuBackend::Lookup(const Executor&, TokenPair token, const LookupBatch& batch) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  for (const FeatureInput& feature : batch.features) {
    DYNEMB_RETURN_IF_ERROR(CheckBags(feature));
  }
  std::vector<TableWork> all;
  for (size_t t = 0; t < batch.tables.size(); ++t) {
    TableWork& work = all.emplace_back();
    work.table = &table(batch.tables[t]);
    work.unique_rows = batch.unique_rows[t];
    for (size_t f = 0; f < batch.features.size(); ++f) {
      if (batch.features[f].table != batch.tables[t]) continue;
      work.features.push_back({&batch.features[f], batch.rows[f], batch.index[f], work.num_ids});
      work.num_ids += batch.features[f].NumIds();
    }
    work.rows = work.table->scratch().rows.Get(work.num_ids);
    for (const EvictedOutput& output : batch.evicted) {
      if (output.table == batch.tables[t]) work.evicted = &output;
    }
  }

  if (CheckToken(*token.in).ok()) {  // else it is a replay, or an error
    for (TableWork& work : all) work.table->Expire(OldestPinned(epoch_ + 1));
  }
  uint64_t checksum = 0;
  for (size_t t = 0; t < all.size(); ++t) {
    checksum = Mix64(checksum + Probe(all[t]) + static_cast<uint64_t>(batch.tables[t]));
  }
  bool replay = false;
  DYNEMB_RETURN_IF_ERROR(CheckLookupToken(*token.in, checksum, &replay));
  for (TableWork& work : all) replay ? AdmitAgain(work) : Admit(work);
  if (!replay) {
    for (TableWork& work : all) DYNEMB_RETURN_IF_ERROR(MakeRoomFor(work));
  }

  const uint32_t epoch = replay ? NextEpoch() : NextLookup();
  for (size_t t = 0; t < all.size(); ++t) {
    TableWork& work = all[t];
    const bool bounded = work.table->is_bounded();
    work.epoch = epoch;
    work.oldest_pinned = OldestPinned(epoch);
    work.replay = replay;
    if (!replay) {
      ++work.table->counters.lookups;
      work.table->scratch().evicted.clear();
    }
    if (bounded && !work.misses.empty()) PinHits(work);
    if (bounded) {
      InsertBounded(work);
    } else {
      Insert(work);
    }
    batch.header[kHeaderCounts + t] = Claim(work);
    if (bounded && !replay) ScoreAll(work);
    GatherAll(work);
    WriteEvicted(work);
    if (!replay) Count(work);
  }
  if (replay) {
    *token.out = static_cast<int32_t>(version_);
  } else {
    Advance(token);
    last_was_lookup_ = true;
    last_ids_checksum_ = checksum;
    last_lookup_epoch_ = epoch;
  }
  batch.header[kHeaderGeneration] = static_cast<int32_t>(last_lookup_epoch_);
  return Status();
}

}  // namespace dynemb
