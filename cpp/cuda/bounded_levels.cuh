// New keys of bounded tables: each takes a free row or that of a victim, with the result
// of taking them one by one (docs/eviction.md): all keys at their home buckets, in the
// order of the ids; then those that found no place at their second ones; and so on.
//
// So at every level the keys that meet at a bucket hang themselves on a list, and for the
// one at its end a team of lanes works through it. Buckets have nothing to do with each
// other.
#pragma once  // included by insert_bounded.cu alone

#include "core/score.h"
#include "cuda/bounded_call.cuh"
#include "cuda/team_bucket.cuh"

namespace dynemb {

// What a level is about.
struct Level {
  int64_t steps;  // along the path
  uint32_t oldest_pinned;
};

// Keys choose their victims in this bucket of their path, and in that before it.
__device__ inline bool IsForVictims(const Level& level) { return level.steps < kVictimBuckets; }

// Where a key is at a level.
template <class Tables>
__device__ BucketIndex BucketAt(const Tables& tables, const LookupScratch& s, OpenKey open,
                                int64_t steps) {
  const IndexView& view = s.tables[tables.table[open.call_table]].index;
  ProbePath path(HashKey(s.new_keys[open.id]), view.num_buckets);
  for (int64_t step = 0; step < steps; ++step) path.Advance();
  return path.bucket();
}

inline constexpr uint32_t kNoNumber = 0xFFFFFFFF;

// The new keys that have met at a bucket. Of up to kTeam of them, nearly always, each lane
// holds one; longer lists are walked again for each key.
struct TeamList {
  unsigned team;
  const LookupScratch& scratch;
  const BoundedScratch& bounded;
  uint32_t head, last;
  uint32_t count = 0;
  uint32_t held = kNoNumber, id = 0;
  Key key = 0;

  // last: the number at the end of the list.
  __device__ TeamList(unsigned lanes, const LookupScratch& s, const BoundedScratch& b,
                      uint32_t first, uint32_t end)
      : team(lanes), scratch(s), bounded(b), head(first), last(end) {
    Walk([&](uint32_t number) {
      if (count++ == static_cast<uint32_t>(TeamBucket::Member())) held = number;
    });
    if (count > kTeam) held = kNoNumber;
    if (held == kNoNumber) return;
    id = bounded.keys[held].id;
    key = scratch.new_keys[id];
  }

  template <class Body>
  __device__ void Walk(const Body& body) const {
    for (uint32_t at = head;; at = __ldcg(bounded.next + at - 1)) {
      body(at - 1);
      if (at - 1 == last) return;
    }
  }

  // The least number from `from` on, or kNoNumber.
  __device__ uint32_t Next(uint32_t from) const {
    uint32_t least = kNoNumber;
    if (count <= kTeam) {
      if (held >= from) least = held;
      return __reduce_min_sync(team, least);
    }
    Walk([&](uint32_t number) {
      if (number >= from) least = min(least, number);
    });
    return least;
  }

  struct NewKey {
    uint32_t id;
    Key key;
  };
  __device__ NewKey KeyOf(uint32_t number) const {
    if (count > kTeam) {
      const uint32_t its = bounded.keys[number].id;
      return {its, scratch.new_keys[its]};
    }
    const int lane = __ffs(static_cast<int>(__ballot_sync(team, held == number))) - 1;
    return {__shfl_sync(team, id, lane), __shfl_sync(team, key, lane)};
  }
};

// Works through the keys at the bucket where number `last` is; returns how many stay open.
// All lanes of a team do the same, but for the slots that each of them holds.
template <class Tables>
__device__ uint32_t ServeBucket(unsigned team, const Tables& tables, const LookupScratch& s,
                                const BoundedScratch& b, const Level& level, uint32_t last) {
  const bool leads = Lane() % kTeam == 0;
  const OpenKey open = b.keys[last];
  const int32_t position = tables.table[open.call_table];
  const TableView& table = s.tables[position];
  TableState& state = s.states[position];
  const CallCounts& counts = s.counts[open.call_table];
  const uint32_t first = static_cast<uint32_t>(INT32_MAX - counts.first_new);
  const uint32_t first_without =
      first + static_cast<uint32_t>(
                  min(FreeRows(tables, s, open.call_table), static_cast<int64_t>(counts.new_rows)));
  const bool victims = table.evicts && IsForVictims(level);
  const BucketIndex which = BucketAt(tables, s, open, level.steps);
  uint32_t* head_place = table.heads + static_cast<uint64_t>(which);
  const uint32_t head = __ldcg(head_place);
  TeamBucket bucket(team, table, which, victims);
  const TeamList list(team, s, b, head, last);

  const auto install = [&](uint32_t number, int slot, int64_t row) {
    const auto [id, key] = list.KeyOf(number);
    uint64_t score = 0;
    if (table.score == ScoreKind::kTime) score = b.time;
    if (table.score == ScoreKind::kStep) {
      score = static_cast<uint64_t>(state.counters.lookups + b.lookups);
    }
    bucket.Put(slot, HashKey(key), key, row, score);
    if (!leads) return;
    __stcg(table.stamps + row, static_cast<uint64_t>(s.epoch) << 32 | kNotNumbered);
    b.slots[id] = bucket.ScorePlace(slot);
    __stcg(b.outcomes + number, row);
  };
  const auto take_row = [&](uint32_t number) {
    const int slot = bucket.FirstEmpty();
    if (slot == kSlotsPerBucket) return false;
    install(number, slot, NthFreeRow(table, state, int64_t{number} - first));
    return true;
  };
  const auto take_from_victim = [&](uint32_t number) {
    if (!victims) return false;
    const Victim victim = bucket.NextVictim(level.oldest_pinned);
    if (victim.slot < 0) return false;
    install(number, victim.slot, victim.row);
    if (!leads) return true;
    if (b.evicted != nullptr) b.evicted[number] = {victim.key, victim.score};
    if (victim.epoch > __ldcg(&state.last_evicted_epoch)) {
      atomicMax(&state.last_evicted_epoch, victim.epoch);
    }
    return true;
  };

  // In the order of their numbers: first those that have rows of their own.
  uint32_t served = 0;
  for (uint32_t from = 0;;) {
    const uint32_t number = list.Next(from);
    if (number == kNoNumber) break;
    if (number < first_without ? take_row(number) : take_from_victim(number)) {
      ++served;
      from = number + 1;
    } else if (number < first_without) {
      from = first_without;
    } else {
      break;
    }
  }
  const bool all_served = served == list.count;
  uint32_t still_open = 0;
  if (!all_served) bucket.MarkOverflow();
  if (!all_served && leads) {
    const bool has_next = level.steps + 1 < kVictimBuckets && table.index.num_buckets > 1;
    list.Walk([&](uint32_t number) {
      if (__ldcg(b.outcomes + number) != kOpen) return;
      if (number < first_without || (table.evicts && has_next)) {
        ++still_open;
      } else {
        __stcg(b.outcomes + number, static_cast<int64_t>(kRowRefused));
      }
    });
  }
  if (leads) __stcg(head_place, 0u);
  return still_open;  // of the first lane
}

// The ends of lists among the numbers of a warp, some side by side; returns how many keys
// stay open.
template <class Tables>
__device__ uint32_t ServeBuckets(const Tables& tables, const LookupScratch& s,
                                 const BoundedScratch& b, const Level& level, uint32_t number,
                                 bool is_end) {
  unsigned ends = __ballot_sync(kFullWarp, is_end);
  const int nth_team = Lane() / kTeam;
  const unsigned team = 0xFFu << (nth_team * kTeam);
  uint32_t open = 0;
  while (ends != 0) {
    // The end for this team: the nth that is left.
    unsigned left = ends;
    for (int skip = 0; skip < nth_team; ++skip) left &= left - 1;
    const int source = left == 0 ? 0 : __ffs(static_cast<int>(left)) - 1;
    const uint32_t its = __shfl_sync(kFullWarp, number, source);
    if (left != 0) {
      const uint32_t stay = ServeBucket(team, tables, s, b, level, its);
      if (Lane() % kTeam == 0) open += stay;
    }
    __syncwarp();
    for (int n = 0; n < 32 / kTeam; ++n) ends &= ends - 1;
  }
  return WarpSum(open);
}

template <bool kTogether, class Tables>
__device__ void ServeAllLevels(const Tables& tables, const LookupScratch& s,
                               const BoundedScratch& b, uint32_t oldest_pinned, uint32_t count) {
  __shared__ uint32_t open_in_block;
  const uint32_t warps = gridDim.x * (kThreads / 32);
  const uint32_t warp = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  // Few keys go to many warps, each of which serves some at once.
  const uint32_t per_warp = min(32u, max(32u / kTeam, (count + warps - 1) / warps));
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
    for_all(nullptr, [&](uint32_t number, bool is_open) {
      if (!is_open) return;
      const OpenKey open = b.keys[number];
      uint32_t* heads = s.tables[tables.table[open.call_table]].heads;
      const uint64_t bucket = static_cast<uint64_t>(BucketAt(tables, s, open, level.steps));
      b.next[number] = atomicExch(heads + bucket, number + 1);
    });
    SyncGrid<kTogether>();
    uint32_t open = 0;
    for_all(b.taken + level.steps % 3, [&](uint32_t number, bool is_open) {
      const bool is_end = is_open && __ldcg(b.next + number) == 0;
      open += ServeBuckets(tables, s, b, level, number, is_end);
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
