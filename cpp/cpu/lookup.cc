// Find or insert. Ids of all features of a table are one batch: probe, make room
// and insert what is absent, number the distinct rows, gather.
#include <atomic>
#include <mutex>
#include <vector>

#include "cpu/cpu_backend.h"
#include "cpu/gather.h"
#include "cpu/key_set.h"
#include "cpu/probe_block.h"
#include "cpu/thread_pool.h"

namespace dynemb {
namespace {

struct FeatureWork {
  const FeatureInput* input;
  float* rows_out;
  int32_t* index_out;
  int64_t first;  // of its ids among the table's
};

struct Miss {
  int64_t id;  // among the table's
  Key key;
};

struct TableWork {
  CpuTable* table;
  std::vector<FeatureWork> features;
  int64_t num_ids = 0;
  int64_t* rows = nullptr;         // [num_ids]: row numbers and kRow... codes
  int64_t* unique_rows = nullptr;  // [num_ids], an output
  int64_t num_padded = 0;
  std::vector<Miss> misses;  // in the order of the ids
  int64_t granted = 0;       // distinct new keys that have room
  int64_t inserted = 0;
  uint32_t epoch = 0;          // of this pass
  uint32_t oldest_pinned = 0;  // rows claimed since make way for nobody
  bool replay = false;         // nothing changes
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

// Phase 2, changes no key or row: room for the distinct new keys.
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

// Phase 3, bounded tables: no hit of the batch makes way for its new keys.
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

// The row of an absent key, or kNoRow: refused.
RowIndex InsertOne(TableWork& work, KeyHash hash, Key key, std::vector<NewRow>& fresh) {
  CpuTable& table = *work.table;
  bool inserted = false;
  RowIndex row = kNoRow;
  if (std::ssize(fresh) < work.granted) {
    row = table.FindOrInsert(hash, key, &inserted);
  } else {
    // Room is used up: only keys that this batch has inserted are found.
    row = FindRow(table.index(), hash, key);
    if (row == kNoRow && table.config().on_full == OnFull::kEvict && !work.replay) {
      row = table.EvictAndInsert(hash, key, work.oldest_pinned);
      inserted = row != kNoRow;
    }
  }
  if (!inserted) return row;
  if (table.is_bounded()) table.PinNew(row, work.epoch);
  fresh.push_back({row, key});
  return row;
}

// Phase 4: absent keys become rows, in the order of the ids.
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
      RowIndex row = InsertOne(work, hashes[i - begin], miss.key, fresh);
      work.rows[miss.id] = row == kNoRow ? kRowRefused : static_cast<int64_t>(row);
    }
  }
  ThreadPool::Shared().ParallelFor(static_cast<int64_t>(fresh.size()), 256,
                                   [&](int64_t begin, int64_t end) {
                                     for (int64_t i = begin; i < end; ++i) {
                                       const NewRow& added = fresh[static_cast<size_t>(i)];
                                       table.InitEmbedding(added.row, added.key);
                                       table.InitState(added.row);
                                     }
                                   });
  work.inserted = std::ssize(fresh);
}

// Phase 5: numbers the distinct rows in order of first occurrence; returns how
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

// Phase 6, bounded tables: every id of the batch counts.
void ScoreAll(const TableWork& work) {
  constexpr int64_t kAhead = 24;
  CpuTable& table = *work.table;
  const uint64_t now = table.ScoreNow();
  for (const FeatureWork& feature : work.features) {
    const int64_t* rows = work.rows + feature.first;
    const uint64_t* given = feature.input->scores;
    const int64_t num_ids = feature.input->NumIds();
    for (int64_t i = 0; i < num_ids; ++i) {
      if (i + kAhead < num_ids && rows[i + kAhead] >= 0) {
        __builtin_prefetch(table.pool().scores() + rows[i + kAhead], 1);
      }
      if (rows[i] >= 0) table.Score(RowIndex{rows[i]}, given == nullptr ? now : given[i]);
    }
  }
}

// Phase 7.
void GatherAll(const TableWork& work) {
  for (const FeatureWork& feature : work.features) {
    ThreadPool::Shared().ParallelFor(
        feature.input->NumOutputRows(), 512, [&](int64_t begin, int64_t end) {
          Gather(*work.table, *feature.input, work.rows + feature.first, 0, begin, end,
                 feature.rows_out);
        });
  }
}

void Count(const TableWork& work) {
  TableCounters& counters = work.table->counters;
  int64_t refused = 0;
  for (const Miss& miss : work.misses) refused += work.rows[miss.id] == kRowRefused;
  int64_t ids = work.num_ids - work.num_padded;
  const bool evicts = work.table->config().on_full == OnFull::kEvict;
  counters.ids += ids;
  counters.inserted += work.inserted;
  (evicts ? counters.refused_pinned : counters.refused_budget) += refused;
  counters.hits += ids - work.inserted - refused;
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
  }

  uint64_t checksum = 0;
  for (size_t t = 0; t < all.size(); ++t) {
    checksum = Mix64(checksum + Probe(all[t]) + static_cast<uint64_t>(batch.tables[t]));
  }
  bool replay = false;
  DYNEMB_RETURN_IF_ERROR(CheckLookupToken(*token.in, checksum, &replay));
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
    if (!replay) ++work.table->counters.lookups;
    if (bounded && !work.misses.empty()) PinHits(work);
    Insert(work);
    batch.header[kHeaderCounts + t] = Claim(work);
    if (bounded && !replay) ScoreAll(work);
    GatherAll(work);
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
