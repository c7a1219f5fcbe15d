// New keys of bounded tables: each takes a free row or that of a victim, with the result
// of taking them one by one in the order of the ids (docs/eviction.md).
//
// A key changes its first two buckets and no other. So a round lets every key go ahead
// that is the first of those still open in both of its buckets: nobody before it can
// change what it sees. Keys that found both full of free rows' keys go on along their
// path, in the same rounds.
#pragma once  // included by insert_bounded.cu alone

#include "core/score.h"
#include "cuda/bounded_call.cuh"
#include "cuda/team_bucket.cuh"

namespace dynemb {

// An open key as a round sees it.
struct Turn {
  bool is_open = false;
  uint32_t number = 0;
  int64_t stage = 0;
  Key key = 0;
  OpenKey open{};
  uint64_t first_lock = 0, second_lock = 0;  // places among the locks; equal: there is one
};

__device__ inline uint64_t LockOf(const LookupScratch& s, int32_t table, BucketIndex bucket) {
  return Mix64(static_cast<uint64_t>(bucket) + (static_cast<uint64_t>(table) << 40)) &
         s.election_mask;
}

template <class Tables>
__device__ Turn LoadTurn(const Tables& tables, const LookupScratch& s, const BoundedScratch& b,
                         uint32_t number, uint32_t count) {
  Turn turn;
  turn.number = number;
  if (number >= count) return turn;
  const int64_t outcome = __ldcg(b.outcomes + number);
  if (outcome > kOpen) return turn;
  turn.is_open = true;
  turn.stage = kOpen - outcome;
  turn.open = b.keys[number];
  turn.key = s.new_keys[turn.open.id];
  const int32_t table = tables.table[turn.open.call_table];
  ProbePath path(HashKey(turn.key), s.tables[table].index.num_buckets);
  for (int64_t step = 0; step < turn.stage; ++step) path.Advance();
  turn.first_lock = turn.second_lock = LockOf(s, table, path.bucket());
  path.Advance();
  if (turn.stage == 0 && !path.Exhausted()) turn.second_lock = LockOf(s, table, path.bucket());
  return turn;
}

// Locks are kept by the key of the smallest number.
__device__ inline uint64_t LockWord(const BoundedScratch& b, uint32_t number) {
  return static_cast<uint64_t>(b.lock_epoch) << 32 | (0xFFFFFFFFu - number);
}
__device__ inline uint64_t OpenLock(const BoundedScratch& b) {
  return static_cast<uint64_t>(b.lock_epoch) << 32;
}

// What the rounds of a call have in common.
struct Bounds {
  uint32_t oldest_pinned;
};

// One key's turn, by the team of its lanes. Without `has_turn` it only looks whether there
// is a victim left, and is refused if not. Returns whether the key is open still.
template <class Tables>
__device__ bool TakeTurn(unsigned team, const Tables& tables, const LookupScratch& s,
                         const BoundedScratch& b, const Bounds& bounds, const Turn& turn,
                         bool has_turn) {
  const bool leads = Lane() % kTeam == 0;
  const int32_t position = tables.table[turn.open.call_table];
  const TableView& table = s.tables[position];
  TableState& state = s.states[position];
  const CallCounts& counts = s.counts[turn.open.call_table];
  const IndexView& view = table.index;
  const KeyHash hash = HashKey(turn.key);
  const int64_t nth = int64_t{turn.number} - (INT32_MAX - counts.first_new);
  const bool has_row = nth < FreeRows(tables, s, turn.open.call_table);

  ProbePath path(hash, view.num_buckets);
  for (int64_t step = 0; step < turn.stage; ++step) path.Advance();
  TeamBucket buckets[2];
  buckets[0].bucket = path.bucket();
  buckets[0].exists = true;
  buckets[0].Load(view);
  path.Advance();
  if (turn.stage == 0 && !path.Exhausted()) {
    buckets[1].bucket = path.bucket();
    buckets[1].exists = true;
    buckets[1].Load(view);
  }

  int64_t row = kRowRefused;
  if (has_row) {
    if (!has_turn) return true;
    row = NthFreeRow(table, state, nth);
  } else if (table.evicts) {
    const Victim victim = FindVictimByTeam(team, table, buckets, bounds.oldest_pinned);
    if (victim.bucket >= 0) {
      if (!has_turn) return true;
      row = victim.row;
      buckets[victim.bucket].SetTag(view, victim.slot, 0);
      if (leads && b.evicted != nullptr) b.evicted[turn.number] = {victim.key, victim.score};
      if (leads && victim.epoch > __ldcg(&state.last_evicted_epoch)) {
        atomicMax(&state.last_evicted_epoch, victim.epoch);
      }
    }
  }
  int64_t outcome = row;
  if (row >= 0) {
    int in = 0, slot = buckets[0].FirstEmpty(team);
    if (slot == kSlotsPerBucket) {
      buckets[0].MarkOverflow(view);
      in = 1;
      slot = buckets[1].FirstEmpty(team);
    }
    if (slot == kSlotsPerBucket) {
      // Only with a free row: a victim has left a slot.
      buckets[1].MarkOverflow(view);
      outcome = kOpen - (turn.stage == 0 ? 2 : turn.stage + 1);
    } else {
      buckets[in].SetTag(view, slot, hash.Tag());
      if (leads) {
        const BucketIndex bucket = buckets[in].bucket;
        __stcg(reinterpret_cast<ulonglong2*>(&view.EntryAt({bucket, slot})),
               make_ulonglong2(turn.key, static_cast<unsigned long long>(row)));
        const int64_t at = static_cast<int64_t>(bucket) * kScoresPerBucket + slot;
        uint64_t score = 0;
        if (table.score == ScoreKind::kTime) score = b.time;
        if (table.score == ScoreKind::kStep) {
          score = static_cast<uint64_t>(state.counters.lookups + b.lookups);
        }
        __stcg(table.scores + at, score);
        __stcg(table.stamps + row, static_cast<uint64_t>(s.epoch) << 32 | kNotNumbered);
        b.slots[turn.open.id] = at;
      }
    }
  }
  if (leads) {
    __stcg(b.outcomes + turn.number, outcome);
    if (has_turn) {
      __stcg(s.elections + turn.first_lock, OpenLock(b));
      __stcg(s.elections + turn.second_lock, OpenLock(b));
    }
  }
  return outcome <= kOpen;
}

// The turns of a warp's keys, some side by side; returns how many stay open.
template <class Tables>
__device__ uint32_t TakeTurns(const Tables& tables, const LookupScratch& s, const BoundedScratch& b,
                              const Bounds& bounds, const Turn& turn, bool has_turn, bool looks) {
  uint32_t open = static_cast<uint32_t>(__popc(__ballot_sync(kFullWarp, turn.is_open)));
  unsigned taking = __ballot_sync(kFullWarp, turn.is_open && (has_turn || looks));
  const int nth_team = Lane() / kTeam;
  const unsigned team = 0xFFu << (nth_team * kTeam);
  while (taking != 0) {
    // The key of this team: the nth that is left.
    unsigned left = taking;
    for (int skip = 0; skip < nth_team; ++skip) left &= left - 1;
    const int source = left == 0 ? 0 : __ffs(static_cast<int>(left)) - 1;
    Turn its;
    its.is_open = left != 0;
    its.number = __shfl_sync(kFullWarp, turn.number, source);
    its.stage = __shfl_sync(kFullWarp, turn.stage, source);
    its.key = __shfl_sync(kFullWarp, turn.key, source);
    its.open.id = __shfl_sync(kFullWarp, turn.open.id, source);
    its.open.call_table = __shfl_sync(kFullWarp, turn.open.call_table, source);
    its.first_lock = __shfl_sync(kFullWarp, turn.first_lock, source);
    its.second_lock = __shfl_sync(kFullWarp, turn.second_lock, source);
    const bool its_turn = __shfl_sync(kFullWarp, has_turn ? 1 : 0, source) != 0;
    bool closed = false;
    if (its.is_open) closed = !TakeTurn(team, tables, s, b, bounds, its, its_turn);
    open -= static_cast<uint32_t>(__popc(__ballot_sync(kFullWarp, closed && Lane() % kTeam == 0)));
    for (int n = 0; n < 32 / kTeam; ++n) taking &= taking - 1;
  }
  return open;
}

template <bool kTogether, class Tables>
__device__ void TakeAllTurns(const Tables& tables, const LookupScratch& s, const BoundedScratch& b,
                             const Bounds& bounds, uint32_t count) {
  __shared__ uint32_t open_in_block;
  const uint32_t stride = gridDim.x * kThreads;
  const uint32_t mine = blockIdx.x * kThreads + threadIdx.x;
  for (int round = 0;; ++round) {
    if (threadIdx.x == 0) open_in_block = 0;
    if (mine == 0) b.left[(round + 1) % 3] = 0;
    for (uint32_t number = mine; number < count; number += stride) {
      const Turn turn = LoadTurn(tables, s, b, number, count);
      if (!turn.is_open) continue;
      unsigned long long* locks = reinterpret_cast<unsigned long long*>(s.elections);
      atomicMax(locks + turn.first_lock, LockWord(b, number));
      atomicMax(locks + turn.second_lock, LockWord(b, number));
    }
    SyncGrid<kTogether>();
    const bool looks = round >= kPatientRounds && round % 8 == 0;
    uint32_t open = 0;
    for (uint32_t first = mine - static_cast<uint32_t>(Lane()); first < count; first += stride) {
      const uint32_t number = first + static_cast<uint32_t>(Lane());
      const Turn turn = LoadTurn(tables, s, b, number, count);
      if (!__any_sync(kFullWarp, turn.is_open)) continue;
      const bool has_turn = turn.is_open &&
                            __ldcg(s.elections + turn.first_lock) == LockWord(b, number) &&
                            __ldcg(s.elections + turn.second_lock) == LockWord(b, number);
      __syncwarp();
      open += TakeTurns(tables, s, b, bounds, turn, has_turn, looks);
    }
    if (Lane() == 0 && open != 0) atomicAdd(&open_in_block, open);
    __syncthreads();
    if (threadIdx.x == 0 && open_in_block != 0) atomicAdd(b.left + round % 3, open_in_block);
    SyncGrid<kTogether>();
    if (__ldcg(b.left + round % 3) == 0) return;
  }
}

}  // namespace dynemb
