// The least scores of buckets, for threads of a warp that each own a bucket of a bounded table.
#pragma once

#include "core/victim.h"
#include "cuda/device_ops.cuh"

namespace dynemb {

// Lanes that read a bucket together, and the teams of a warp.
inline constexpr int kTeam = 8;
inline constexpr int kTeams = 32 / kTeam;

// Slots as bits of a mask. Lane m of a team reads the slots 2 m, 2 m + 1, 2 m + 16 and
// 2 m + 17, so that each read of a team takes up whole sectors; their bits are m, m + 8,
// m + 16 and m + 24.
__device__ inline int SlotOfBit(int bit) {
  return 2 * (bit % kTeam) + (bit / kTeam & 1) + (bit >> 4) * 16;
}
__device__ inline int BitOfSlot(int slot) {
  return slot / 2 % kTeam + (slot & 1) * kTeam + (slot >> 4) * 16;
}
inline constexpr unsigned kControlBit = 1u << 31;  // where a slot 31 would be

// What a thread owns. (2^32 buckets would take 2 TB.)
struct OwnedBucket {
  int32_t table = 0;  // position in the group
  uint32_t bucket = 0;
  unsigned barred = kControlBit;  // slots whose keys may not go

  __device__ int64_t ScorePlace(int slot) const {
    return int64_t{bucket} * kScoresPerBucket + slot;
  }
};

// Among the keys of a bucket that may go the least score, and the slots that have it.
struct LeastScore {
  uint64_t score = ~uint64_t{0};
  unsigned slots = 0;  // none: no key may go
};

// Threads of a warp that ask about their buckets. A thread alone would wait for 16 reads of
// its own, so teams read for the threads that ask, some at a time and all lanes in step.
// The whole warp calls everything.
struct Askers {
  unsigned asking;
  int lane_of_nth;  // in lane n: of asker n

  __device__ explicit Askers(bool asks) : asking(__ballot_sync(kFullWarp, asks)) {
    lane_of_nth = 0;
    int n = Lane();
#pragma unroll
    for (int half = 16; half > 0; half /= 2) {
      const int below = __popc(asking >> lane_of_nth & ((1u << half) - 1));
      if (n < below) continue;
      n -= below;
      lane_of_nth += half;
    }
  }
  __device__ int count() const { return __popc(asking); }
  // The asker for whom this team works, of those from number `first` on, and whether there is one.
  __device__ int Served(int first) const {
    return __shfl_sync(kFullWarp, lane_of_nth, (first + Lane() / kTeam) & 31) & 31;
  }
  __device__ bool Serves(int first) const { return first + Lane() / kTeam < count(); }
  // The team that works for this thread, of those that work for askers from `first` on;
  // not in [0, kTeams): it is none of them.
  __device__ int Team(int first) const { return __popc(asking & ((1u << Lane()) - 1)) - first; }
  __device__ static int FirstLane(int team) { return team * kTeam & 31; }
};

// What one lane of a team reads.
struct BucketPart {
  unsigned tags = 0;  // a byte each
  uint64_t scores[4];

  __device__ void Load(const TableView& table, uint32_t bucket) {
    const int member = Lane() % kTeam;
    const auto* pairs = reinterpret_cast<const unsigned short*>(table.index.sectors + bucket);
    tags = __ldcg(pairs + member) | static_cast<unsigned>(__ldcg(pairs + kTeam + member)) << 16;
    const auto* twos =
        reinterpret_cast<const ulonglong2*>(table.scores + int64_t{bucket} * kScoresPerBucket);
    const ulonglong2 low = __ldcg(twos + member), high = __ldcg(twos + kTeam + member);
    scores[0] = low.x;
    scores[1] = low.y;
    scores[2] = high.x;
    scores[3] = high.y;
  }

  // Of the bucket, in all lanes of the team.
  __device__ LeastScore Least(unsigned barred) const {
    LeastScore least;
    bool may_go[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      may_go[k] = (tags >> (8 * k) & 0xFFu) != 0 && (barred >> (8 * k + Lane() % kTeam) & 1u) == 0;
      if (may_go[k]) least.score = min(least.score, scores[k]);
    }
#pragma unroll
    for (int mask = kTeam / 2; mask > 0; mask /= 2) {
      least.score = min(least.score, __shfl_xor_sync(kFullWarp, least.score, mask));
    }
    const int shift = Lane() / kTeam * kTeam;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const unsigned those = __ballot_sync(kFullWarp, may_go[k] && scores[k] == least.score);
      least.slots |= (those >> shift & 0xFFu) << (8 * k);
    }
    return least;
  }
};

// Each thread that asks learns about its bucket.
__device__ inline LeastScore LeastOfBuckets(const TableView* tables, bool asks,
                                            const OwnedBucket& mine) {
  constexpr int kAtOnce = 2;  // buckets whose reads a team has in flight
  const Askers askers(asks);
  LeastScore result;
  for (int base = 0; base < askers.count(); base += kAtOnce * kTeams) {
    BucketPart parts[kAtOnce];
    unsigned barred[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int source = askers.Served(base + n * kTeams);
      const int32_t table = __shfl_sync(kFullWarp, mine.table, source);
      const uint32_t bucket = __shfl_sync(kFullWarp, mine.bucket, source);
      barred[n] = __shfl_sync(kFullWarp, mine.barred, source);
      if (askers.Serves(base + n * kTeams)) parts[n].Load(tables[table], bucket);
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const LeastScore least = parts[n].Least(barred[n]);
      const int team = askers.Team(base + n * kTeams);
      const uint64_t score = __shfl_sync(kFullWarp, least.score, Askers::FirstLane(team));
      const unsigned slots = __shfl_sync(kFullWarp, least.slots, Askers::FirstLane(team));
      if (asks && team >= 0 && team < kTeams) result = {score, slots};
    }
  }
  return result;
}

// Each thread that asks learns which of some slots of its bucket has the key with the
// smallest hash.
__device__ inline unsigned SmallestHashes(const TableView* tables, bool asks,
                                          const OwnedBucket& mine, unsigned slots) {
  const Askers askers(asks);
  const int member = Lane() % kTeam;
  unsigned result = slots;
  for (int base = 0; base < askers.count(); base += kTeams) {
    const int source = askers.Served(base);
    const int32_t table = __shfl_sync(kFullWarp, mine.table, source);
    const uint32_t bucket = __shfl_sync(kFullWarp, mine.bucket, source);
    const unsigned theirs = __shfl_sync(kFullWarp, slots, source);
    const unsigned left = askers.Serves(base) ? theirs >> member : 0u;
    const Entry* entries = tables[table].index.entries + int64_t{bucket} * kSlotsPerBucket;
    // All reads before the first use.
    Key keys[4] = {};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if ((left >> (8 * k) & 1u) != 0) keys[k] = __ldcg(&entries[SlotOfBit(8 * k + member)].key);
    }
    uint64_t smallest = ~uint64_t{0};
    unsigned its = 0;  // none
    const auto consider = [&](uint64_t hash, unsigned slot) {
      if (slot == 0 || (its != 0 && hash >= smallest)) return;
      smallest = hash;
      its = slot;
    };
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      consider(HashKey(keys[k]).bits, (left >> (8 * k) & 1u) << (8 * k + member));
    }
#pragma unroll
    for (int mask = kTeam / 2; mask > 0; mask /= 2) {
      const uint64_t hash = __shfl_xor_sync(kFullWarp, smallest, mask);
      consider(hash, __shfl_xor_sync(kFullWarp, its, mask));
    }
    const int team = askers.Team(base);
    const unsigned answer = __shfl_sync(kFullWarp, its, Askers::FirstLane(team));
    if (asks && team >= 0 && team < kTeams) result = answer;
  }
  return result;
}

}  // namespace dynemb
