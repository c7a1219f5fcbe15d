// Buckets of a bounded table and the choice of a victim, by teams of lanes.
#pragma once

#include "core/victim.h"
#include "cuda/device_ops.cuh"

namespace dynemb {

// Lanes that work on one key: as many as a sector has words.
inline constexpr int kTeam = 8;

// What a team holds of one bucket: lane l the tags and scores of slots 4 l to 4 l + 3.
struct TeamBucket {
  BucketIndex bucket{0};
  unsigned word = 0;
  bool exists = false;

  __device__ unsigned* Address(const IndexView& view) const {
    return reinterpret_cast<unsigned*>(&view.Sector(bucket)) + Lane() % kTeam;
  }
  __device__ void Load(const IndexView& view) { word = __ldcg(Address(view)); }
  __device__ bool IsSlot(int k) const { return Lane() % kTeam < kTeam - 1 || k < 3; }
  __device__ bool Occupied(int k) const {
    return exists && IsSlot(k) && (word >> (8 * k) & 0xFFu) != 0;
  }
  // The first empty slot, in all lanes; kSlotsPerBucket: none.
  __device__ int FirstEmpty(unsigned team) const {
    int slot = kSlotsPerBucket;
#pragma unroll
    for (int k = 3; k >= 0; --k) {
      if (exists && IsSlot(k) && (word >> (8 * k) & 0xFFu) == 0) slot = Lane() % kTeam * 4 + k;
    }
    return static_cast<int>(__reduce_min_sync(team, static_cast<unsigned>(slot)));
  }
  __device__ void SetTag(const IndexView& view, int slot, uint8_t tag) {
    if (slot / 4 != Lane() % kTeam) return;
    const int shift = 8 * (slot % 4);
    word = (word & ~(0xFFu << shift)) | static_cast<unsigned>(tag) << shift;
    __stcg(Address(view), word);
  }
  __device__ void MarkOverflow(const IndexView& view) {
    if (!exists || Lane() % kTeam != kTeam - 1) return;
    word |= unsigned{kOverflowMark} << 24;
    __stcg(Address(view), word);
  }
};

template <class T>
__device__ T TeamMin(unsigned team, T value) {
  for (int mask = kTeam / 2; mask > 0; mask /= 2) {
    value = min(value, __shfl_xor_sync(team, value, mask));
  }
  return value;
}

struct Victim {
  int bucket = -1;  // 0 or 1; -1: there is none
  int slot = 0;
  Key key = 0;
  int64_t row = 0;
  uint64_t score = 0;
  uint32_t epoch = 0;  // of its last claim
};

// FindVictim (core/victim.h) by a team.
__device__ inline Victim FindVictimByTeam(unsigned team, const TableView& table,
                                          const TeamBucket (&buckets)[2], uint32_t oldest_pinned) {
  const int lane = Lane() % kTeam;
  uint64_t scores[2][4];
  unsigned candidates = 0;  // bit 4 b + k
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    if (!buckets[n].exists) continue;
    const ulonglong2* from = reinterpret_cast<const ulonglong2*>(
        table.scores + static_cast<uint64_t>(buckets[n].bucket) * kScoresPerBucket + lane * 4);
    const ulonglong2 low = __ldcg(from), high = __ldcg(from + 1);
    scores[n][0] = low.x;
    scores[n][1] = low.y;
    scores[n][2] = high.x;
    scores[n][3] = high.y;
#pragma unroll
    for (int k = 0; k < 4; ++k) candidates |= buckets[n].Occupied(k) ? 1u << (4 * n + k) : 0u;
  }
  Victim victim;
  while (__any_sync(team, candidates != 0)) {
    uint64_t least = kMaxScore;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      if ((candidates >> c & 1u) != 0) least = min(least, scores[c / 4][c % 4]);
    }
    least = TeamMin(team, least);
    // Of equal scores the smaller hash.
    uint64_t hash = ~uint64_t{0};
    Entry entry{};
    int mine = -1;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      if ((candidates >> c & 1u) == 0 || scores[c / 4][c % 4] != least) continue;
      const ulonglong2 both = __ldcg(reinterpret_cast<const ulonglong2*>(
          &table.index.EntryAt({buckets[c / 4].bucket, lane * 4 + c % 4})));
      const uint64_t its = HashKey(both.x).bits;
      if (mine >= 0 && its >= hash) continue;
      hash = its;
      entry = Entry{both.x, both.y};
      mine = c;
    }
    const uint64_t chosen = TeamMin(team, hash);
    const bool is_mine = mine >= 0 && hash == chosen;
    uint32_t epoch = 0;
    if (is_mine) {
      epoch = static_cast<uint32_t>(__ldcg(table.stamps + static_cast<int64_t>(entry.Row())) >> 32);
    }
    const int source = __ffs(static_cast<int>(__ballot_sync(team, is_mine))) - 1;
    epoch = __shfl_sync(team, epoch, source);
    if (epoch >= oldest_pinned) {
      if (is_mine) candidates &= ~(1u << mine);
      continue;
    }
    const int at = __shfl_sync(team, mine, source);
    victim.bucket = at / 4;
    victim.slot = source % kTeam * 4 + at % 4;
    victim.key = __shfl_sync(team, entry.key, source);
    victim.row = __shfl_sync(team, static_cast<int64_t>(entry.Row()), source);
    victim.score = least;
    victim.epoch = epoch;
    break;
  }
  return victim;
}

}  // namespace dynemb
