#include "cpu/cpu_index.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "cpu/thread_pool.h"

namespace dynemb {
namespace {

// Places an entry whose key is known to be absent, in the first bucket of its
// path with room (B2).
void PlaceAbsent(const IndexView& view, const Entry& entry) {
  KeyHash hash = HashKey(entry.key);
  for (ProbePath path(hash, view.num_buckets); !path.Exhausted(); path.Advance()) {
    TagSector& sector = view.Sector(path.bucket());
    if (uint32_t empty = sector.Empty()) {
      int slot = LowestBit(empty);
      sector.tags[slot] = hash.Tag();
      view.EntryAt({path.bucket(), slot}) = entry;
      return;
    }
    sector.control |= kOverflowMark;
  }
}

bool HasSmallerHash(const Entry& a, const Entry& b) {
  return HashKey(a.key).bits < HashKey(b.key).bits;
}

}  // namespace

Status CpuIndex::Grow(uint64_t num_buckets) {
  DYNEMB_RETURN_IF_ERROR(
      sectors_.Commit(static_cast<Bytes>(num_buckets) * static_cast<Bytes>(sizeof(TagSector))));
  DYNEMB_RETURN_IF_ERROR(entries_.Commit(static_cast<Bytes>(num_buckets) * kSlotsPerBucket *
                                         static_cast<Bytes>(sizeof(Entry))));
  view_.sectors = reinterpret_cast<TagSector*>(sectors_.data());
  view_.entries = reinterpret_cast<Entry*>(entries_.data());
  if (view_.num_buckets == 0) {
    view_.num_buckets = num_buckets;  // committed bytes are zero: all empty
  }
  while (view_.num_buckets < num_buckets) Split();
  return Status();
}

// Doubles in place. A key in its home bucket b stays at b or goes to b + N, so
// every pair of buckets is one thread's own work. Keys that had overflowed are
// taken out and placed again once all marks are cleared: the new marks are exact.
void CpuIndex::Split() {
  const uint64_t old_buckets = view_.num_buckets;
  IndexView grown = view_;
  grown.num_buckets = 2 * old_buckets;
  std::vector<Entry> overflowed;
  std::mutex overflowed_mutex;

  auto split_range = [&](int64_t begin, int64_t end) {
    std::vector<Entry> local;
    for (int64_t i = begin; i < end; ++i) {
      BucketIndex low{static_cast<uint64_t>(i)};
      BucketIndex high{static_cast<uint64_t>(i) + old_buckets};
      TagSector& from = grown.Sector(low);
      TagSector& to = grown.Sector(high);
      to = TagSector{};
      int placed = 0;
      for (int slot = 0; slot < kSlotsPerBucket; ++slot) {
        if (from.tags[slot] == 0) continue;
        const Entry& entry = grown.EntryAt({low, slot});
        KeyHash hash = HashKey(entry.key);
        if (hash.Home(old_buckets) != low) {
          local.push_back(entry);
        } else if (hash.Home(grown.num_buckets) == high) {
          to.tags[placed] = from.tags[slot];
          grown.EntryAt({high, placed++}) = entry;
        } else {
          continue;  // stays
        }
        from.tags[slot] = 0;
      }
      from.control = 0;
    }
    if (local.empty()) return;
    std::lock_guard<std::mutex> lock(overflowed_mutex);
    overflowed.insert(overflowed.end(), local.begin(), local.end());
  };
  ThreadPool::Shared().ParallelFor(static_cast<int64_t>(old_buckets), 1024, split_range);

  view_ = grown;
  PlaceAgain(std::move(overflowed));
}

// Buckets that agree in their low bits become one, in place. The keys whose home it is
// stay there, those of the smallest hashes if they are too many; the others are placed
// again.
void CpuIndex::Merge(uint64_t num_buckets) {
  std::vector<Entry> home, overflowed;
  for (uint64_t b = 0; b < num_buckets; ++b) {
    home.clear();
    for (uint64_t from = b; from < view_.num_buckets; from += num_buckets) {
      TagSector& sector = view_.Sector(BucketIndex{from});
      for (int slot = 0; slot < kSlotsPerBucket; ++slot) {
        if (sector.tags[slot] == 0) continue;
        const Entry& entry = view_.EntryAt({BucketIndex{from}, slot});
        const bool stays = HashKey(entry.key).Home(num_buckets) == BucketIndex{b};
        (stays ? home : overflowed).push_back(entry);
      }
      sector = TagSector{};
    }
    std::sort(home.begin(), home.end(), HasSmallerHash);
    for (size_t i = 0; i < home.size(); ++i) {
      if (i >= kSlotsPerBucket) {
        overflowed.push_back(home[i]);
        continue;
      }
      const SlotRef ref{BucketIndex{b}, static_cast<int>(i)};
      view_.Sector(ref.bucket).tags[i] = HashKey(home[i].key).Tag();
      view_.EntryAt(ref) = home[i];
    }
  }
  view_.num_buckets = num_buckets;
  PlaceAgain(std::move(overflowed));
}

void CpuIndex::Shrink(uint64_t num_buckets) {
  if (num_buckets == view_.num_buckets) return;
  Merge(num_buckets);
  sectors_.Shrink(static_cast<Bytes>(num_buckets) * static_cast<Bytes>(sizeof(TagSector)));
  entries_.Shrink(static_cast<Bytes>(num_buckets) * kSlotsPerBucket *
                  static_cast<Bytes>(sizeof(Entry)));
}

// In the order of their hashes: where a key lies decides what it may have to make way
// for, and threads hand in their finds in any order.
void CpuIndex::PlaceAgain(std::vector<Entry> overflowed) {
  std::sort(overflowed.begin(), overflowed.end(), HasSmallerHash);
  for (const Entry& entry : overflowed) PlaceAbsent(view_, entry);
  erased_ = 0;
}

void CpuIndex::TidyIfWorn() {
  if (erased_ < view_.num_buckets * kSlotsPerBucket / 8 + 1) return;
  for (uint64_t b = 0; b < view_.num_buckets; ++b) view_.Sector(BucketIndex{b}).control = 0;
  // Keys stay where they are: when this happens decides nothing about victims.
  for (uint64_t b = 0; b < view_.num_buckets; ++b) {
    const BucketIndex bucket{b};
    for (int slot = 0; slot < kSlotsPerBucket; ++slot) {
      if (view_.Sector(bucket).tags[slot] == 0) continue;
      const KeyHash hash = HashKey(view_.EntryAt({bucket, slot}).key);
      for (ProbePath path(hash, view_.num_buckets); path.bucket() != bucket; path.Advance()) {
        view_.Sector(path.bucket()).control |= kOverflowMark;
      }
    }
  }
  erased_ = 0;
}

Entry& CpuIndex::FindOrPlace(KeyHash hash, Key key, bool* inserted) {
  SlotRef free{BucketIndex{0}, -1};
  ProbePath path(hash, view_.num_buckets);
  for (; !path.Exhausted(); path.Advance()) {
    BucketIndex b = path.bucket();
    int slot = FindInBucket(view_, b, hash, key);
    if (slot >= 0) {
      *inserted = false;
      return view_.EntryAt({b, slot});
    }
    TagSector& sector = view_.Sector(b);
    uint32_t empty = sector.Empty();
    if (free.slot < 0 && empty != 0) free = {b, LowestBit(empty)};
    if (!sector.Overflowed()) {
      // The key is absent (B2). Without room so far, it goes further on.
      if (free.slot >= 0) break;
      sector.control |= kOverflowMark;
    }
  }
  *inserted = true;
  view_.Sector(free.bucket).tags[free.slot] = hash.Tag();
  Entry& entry = view_.EntryAt(free);
  entry = Entry{key, 0};
  return entry;
}

void CpuIndex::Place(SlotRef at, const Entry& entry) {
  view_.Sector(at.bucket).tags[at.slot] = HashKey(entry.key).Tag();
  view_.EntryAt(at) = entry;
}

RowIndex CpuIndex::Erase(Key key) {
  SlotRef ref = FindSlot(view_, HashKey(key), key);
  return ref.slot < 0 ? kNoRow : Erase(ref);
}

RowIndex CpuIndex::Erase(SlotRef ref) {
  view_.Sector(ref.bucket).tags[ref.slot] = 0;
  ++erased_;
  return view_.EntryAt(ref).Row();
}

void CpuIndex::EraseAll() {
  std::fill_n(view_.sectors, view_.num_buckets, TagSector{});
  erased_ = 0;
}

}  // namespace dynemb
