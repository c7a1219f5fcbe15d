// New keys of bounded tables: each takes a free row or that of a victim, with the result
// of taking them one by one (docs/eviction.md): all keys at their home buckets, in the
// order of the ids; then those that found no place at their second ones; and so on.
//
// So at every level the keys that meet at a bucket hang themselves on a list, and whoever
// ended up at its end owns the bucket and works through the list. Buckets have nothing to
// do with each other.
#pragma once  // included by insert_bounded.cu alone

#include "core/score.h"
#include "cuda/bounded_call.cuh"
#include "cuda/least_of_buckets.cuh"
#include "cuda/touch.cuh"

namespace dynemb {

// What a level is about.
struct Level {
  int steps;  // along the path
  uint32_t oldest_pinned;
};

// Keys choose their victims in this bucket of their path, and in that before it.
__device__ inline bool IsForVictims(const Level& level) { return level.steps < kVictimBuckets; }

// Where a key is at a level.
__device__ inline BucketIndex BucketAt(const TableView& table, Key key, int steps) {
  ProbePath path(HashKey(key), table.index.num_buckets);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) path.Advance();
  return path.bucket();
}

// A key hangs itself on the list of its bucket.
template <class Tables>
__device__ void Hang(const Tables& tables, const LookupScratch& s, const BoundedScratch& b,
                     const OpenKey& open, uint32_t number, int steps) {
  const TableView& table = s.tables[tables.table[open.call_table]];
  const uint64_t bucket = static_cast<uint64_t>(BucketAt(table, open.key, steps));
  b.next[number] = atomicExch(table.heads + bucket, number + 1);
}

inline constexpr uint32_t kNoNumber = 0xFFFFFFFF;

// The numbers on a list in ascending order, a few of them held at a time: lists are short.
class OrderedList {
 public:
  __device__ explicit OrderedList(const uint32_t* next) : next_(next) {}  // empty
  // last: the number at the end of the list.
  __device__ void Hold(uint32_t head, uint32_t last) {
    head_ = head;
    last_ = last;
    HoldFrom(0);
  }
  __device__ uint32_t front() const { return held_[0]; }  // kNoNumber: the list is done
  __device__ uint32_t left() const { return left_; }
  __device__ void Pop() {
    const uint32_t popped = held_[0];
#pragma unroll
    for (int k = 0; k + 1 < kHeld; ++k) held_[k] = held_[k + 1];
    held_[kHeld - 1] = kNoNumber;
    if (--left_ != 0 && held_[0] == kNoNumber) HoldFrom(popped + 1);
  }
  // Goes on with the numbers from `from` on.
  __device__ void HoldFrom(uint32_t from) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) held_[k] = kNoNumber;
    left_ = 0;
    Walk([&](uint32_t number) {
      if (number < from) return;
      ++left_;
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        const uint32_t less = min(held_[k], number);
        number = max(held_[k], number);
        held_[k] = less;
      }
    });
  }
  __device__ void GiveUp() { held_[0] = kNoNumber; }
  template <class Body>
  __device__ void Walk(const Body& body) const {
    for (uint32_t at = head_;; at = __ldcg(next_ + at - 1)) {
      body(at - 1);
      if (at - 1 == last_) return;
    }
  }

 private:
  static constexpr int kHeld = 4;

  const uint32_t* next_;
  uint32_t head_ = 0, last_ = 0, left_ = 0;
  uint32_t held_[kHeld] = {kNoNumber, kNoNumber, kNoNumber, kNoNumber};
};

// The key that goes: of at most two slots that with the smaller hash.
struct Candidate {
  int bit = -1;
  Entry entry{};

  __device__ Candidate(const Entry* entries, unsigned slots) {
    if (slots == 0) return;
    const int one = LowestBit(slots), other = 31 - __clz(static_cast<int>(slots));
    const auto read = [&](int at) {
      const ulonglong2 both = __ldcg(reinterpret_cast<const ulonglong2*>(entries + SlotOfBit(at)));
      return Entry{both.x, both.y};
    };
    const Entry first = read(one);
    Entry second = first;
    if (other != one) second = read(other);
    const bool is_first = HashKey(first.key).bits <= HashKey(second.key).bits;
    bit = is_first ? one : other;
    entry = is_first ? first : second;
  }
};

// A thread, its bucket, and the list of keys that have met there.
template <class Tables>
struct BucketOwner {
  const Tables& call;
  const LookupScratch& scratch;
  const BoundedScratch& bounded;
  const Level& level;
  OrderedList list;
  OwnedBucket bucket{};
  int32_t call_table = 0;
  uint32_t first = 0, first_without = 0;  // numbers: of the table, and of those without a row
  uint32_t first_unique = 0;              // behind the rows that the probe has claimed
  uint32_t unserved = 0;
  uint32_t latest_evicted = 0;  // epoch

  __device__ BucketOwner(const Tables& tables, const LookupScratch& s, const BoundedScratch& b,
                         const Level& at)
      : call(tables), scratch(s), bounded(b), level(at), list(b.next) {}

  __device__ const TableView& Table() const { return scratch.tables[bucket.table]; }
  __device__ TableState& State() const { return scratch.states[bucket.table]; }
  __device__ TagSector* Sector() const { return Table().index.sectors + bucket.bucket; }
  __device__ Entry* Entries() const {
    return Table().index.entries + int64_t{bucket.bucket} * kSlotsPerBucket;
  }

  // last: the number at the end of the list.
  __device__ void Begin(uint32_t last) {
    const OpenKey open = bounded.keys[last];
    call_table = open.call_table;
    bucket.table = call.table[call_table];
    bucket.bucket = static_cast<uint32_t>(BucketAt(Table(), open.key, level.steps));
    const uint32_t head = atomicExch(Table().heads + bucket.bucket, 0u);
    const CallCounts& counts = scratch.counts[call_table];
    first = static_cast<uint32_t>(INT32_MAX - counts.first_new);
    first_without = first + static_cast<uint32_t>(min(FreeRows(call, scratch, call_table),
                                                      static_cast<int64_t>(counts.new_rows)));
    first_unique = static_cast<uint32_t>(counts.unique);
    list.Hold(head, last);
    unserved = list.left();
  }

  __device__ bool IsAtWork() const { return list.front() != kNoNumber; }
  __device__ bool NeedsVictim() const { return IsAtWork() && list.front() >= first_without; }
  __device__ bool MayEvict() const { return Table().evicts && IsForVictims(level); }

  __device__ void Install(const OpenKey& open, int slot, int64_t row) {
    const TableView& table = Table();
    const uint32_t number = list.front();
    uint64_t score = 0;
    if (table.score == ScoreKind::kTime) score = bounded.time;
    if (table.score == ScoreKind::kStep) {
      score = static_cast<uint64_t>(State().counters.lookups + bounded.lookups);
    }
    bucket.barred |= 1u << BitOfSlot(slot);
    __stcg(Sector()->tags + slot, HashKey(open.key).Tag());
    __stcg(reinterpret_cast<ulonglong2*>(Entries() + slot),
           make_ulonglong2(open.key, static_cast<unsigned long long>(row)));
    __stcg(table.scores + bucket.ScorePlace(slot), score);
    // Holds unless keys find no place.
    const uint32_t unique = first_unique + (number - first);
    __stcg(table.stamps + row, static_cast<uint64_t>(scratch.epoch) << 32 | unique);
    call.unique_rows[call_table][unique] = row;
    scratch.rows[open.id] = kMadeRow - row;
    scratch.made_numbers[open.id] = unique;
    if (IsScoredById(table.score)) bounded.slots[open.id] = bucket.ScorePlace(slot);
    __stcg(bounded.outcomes + number, row);
    --unserved;
    list.Pop();
  }

  // The key at the front has a row of its own.
  __device__ void TakeRow(const OpenKey& open) {
    uint32_t word = 0;
    const int slot = LoadedSector::Fresh(Sector()).FirstEmpty(&word);
    if (slot < 0) return list.HoldFrom(first_without);
    Install(open, slot, NthFreeRow(Table(), State(), int64_t{list.front()} - first));
  }

  // The key at the front takes the place of one that has the least score. If that is
  // pinned, it is to ask again.
  __device__ void TakeFromVictim(const OpenKey& open, const LeastScore& least) {
    const Candidate victim(Entries(), least.slots);
    if (victim.bit < 0) return list.GiveUp();
    const int64_t row = static_cast<int64_t>(victim.entry.Row());
    const uint32_t epoch = static_cast<uint32_t>(__ldcg(Table().stamps + row) >> 32);
    bucket.barred |= 1u << victim.bit;
    if (epoch >= level.oldest_pinned) return;
    latest_evicted = max(latest_evicted, epoch);
    if (bounded.evicted != nullptr) {
      bounded.evicted[list.front()] = {victim.entry.key, least.score};
    }
    Install(open, SlotOfBit(victim.bit), row);
  }

  // What became of the keys that were not served.
  struct Unserved {
    uint32_t open = 0;  // for the next level
    int32_t unplaced = 0;
  };
  __device__ Unserved End() {
    const TableView& table = Table();
    if (latest_evicted > __ldcg(&State().last_evicted_epoch)) {
      atomicMax(&State().last_evicted_epoch, latest_evicted);
    }
    Unserved result;
    if (unserved == 0) return result;
    atomicOr(reinterpret_cast<unsigned*>(Sector()) + kTeam - 1, unsigned{kOverflowMark} << 24);
    const bool has_next = level.steps + 1 < kVictimBuckets && table.index.num_buckets > 1;
    list.Walk([&](uint32_t number) {
      if (__ldcg(bounded.outcomes + number) != kOpen) return;
      if (number < first_without || (table.evicts && has_next)) {
        ++result.open;
        return;
      }
      __stcg(bounded.outcomes + number, static_cast<int64_t>(kRowRefused));
      scratch.rows[bounded.keys[number].id] = kRowRefused;
      ++result.unplaced;
    });
    return result;
  }
};

// The lists that end at numbers of this warp, a thread each and all in step; returns how
// many keys stay open.
template <class Tables>
__device__ uint32_t ServeLists(const Tables& tables, const LookupScratch& s,
                               const BoundedScratch& b, const Level& level, uint32_t number,
                               bool is_end) {
  BucketOwner<Tables> owner(tables, s, b, level);
  if (is_end) owner.Begin(number);
  while (__any_sync(kFullWarp, owner.IsAtWork())) {
    const bool needs_victim = owner.NeedsVictim();
    LeastScore least = LeastOfBuckets(s.tables, needs_victim && owner.MayEvict(), owner.bucket);
    const bool many = __popc(least.slots) > 2;
    if (__any_sync(kFullWarp, many)) {
      least.slots = SmallestHashes(s.tables, many, owner.bucket, least.slots);
    }
    if (owner.IsAtWork()) {
      const OpenKey open = b.keys[owner.list.front()];
      if (needs_victim) {
        owner.TakeFromVictim(open, least);
      } else {
        owner.TakeRow(open);
      }
    }
    __syncwarp();
  }
  typename BucketOwner<Tables>::Unserved unserved;
  if (is_end) unserved = owner.End();
  __syncwarp();
  if (__any_sync(kFullWarp, unserved.unplaced != 0)) {
    const int32_t table = unserved.unplaced != 0 ? owner.call_table : -1;
    const unsigned peers = __match_any_sync(kFullWarp, table);
    const int32_t sum = __reduce_add_sync(peers, unserved.unplaced);
    if (table >= 0 && Lane() == LowestBit(peers)) atomicAdd(b.unplaced + table, sum);
  }
  return WarpSum(unserved.open);
}

// The new keys are at their home buckets' lists.
template <bool kTogether, class Tables>
__device__ void ServeAllLevels(const Tables& tables, const LookupScratch& s,
                               const BoundedScratch& b, uint32_t oldest_pinned, uint32_t count) {
  __shared__ uint32_t open_in_block;
  const uint32_t warps = gridDim.x * (kThreads / 32);
  const uint32_t warp = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  // Few keys go to many warps, which read for as many at once.
  const uint32_t per_warp =
      min(32u, max(static_cast<uint32_t>(kTeams), (count + warps - 1) / warps));
  // taken: of the shares behind the first ones, which are given out as warps get ready;
  // null: all have an owner from the first.
  const auto for_all = [&](uint32_t* taken, const auto& body) {
    for (uint32_t share = warp; share * per_warp < count;) {
      const uint32_t base = share * per_warp;
      const uint32_t number = base + static_cast<uint32_t>(Lane());
      const bool is_mine = Lane() < static_cast<int>(per_warp) && number < count;
      body(number, is_mine && __ldcg(b.outcomes + number) == kOpen);
      uint32_t nth = 0;
      if (taken != nullptr && Lane() == 0 && warps * per_warp < count) nth = atomicAdd(taken, 1u);
      share = taken == nullptr ? share + warps : warps + __shfl_sync(kFullWarp, nth, 0);
    }
  };
  for (Level level{0, oldest_pinned};; ++level.steps) {
    if (threadIdx.x == 0) open_in_block = 0;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      b.left[(level.steps + 1) % 3] = b.taken[(level.steps + 1) % 3] = 0;
    }
    if (level.steps > 0) {
      for_all(nullptr, [&](uint32_t number, bool is_open) {
        if (is_open) Hang(tables, s, b, b.keys[number], number, level.steps);
      });
    }
    SyncGrid<kTogether>();
    uint32_t open = 0;
    for_all(b.taken + level.steps % 3, [&](uint32_t number, bool is_open) {
      const bool is_end = is_open && __ldcg(b.next + number) == 0;
      open += ServeLists(tables, s, b, level, number, is_end);
    });
    if (Lane() == 0 && open != 0) atomicAdd(&open_in_block, open);
    __syncthreads();
    if (threadIdx.x == 0 && open_in_block != 0) {
      atomicAdd(b.left + level.steps % 3, open_in_block);
    }
    SyncGrid<kTogether>();
    if (__ldcg(b.left + level.steps % 3) == 0) return;
  }
}

}  // namespace dynemb
