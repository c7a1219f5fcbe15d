// A bucket of a bounded table in the registers of a team of lanes, and its victims.
#pragma once

#include "core/victim.h"
#include "cuda/device_ops.cuh"

namespace dynemb {

// Lanes of a team: as many as a sector has words. Lane l holds slots 4 l to 4 l + 3.
inline constexpr int kTeam = 8;

template <class T>
__device__ T TeamMin(unsigned team, T value) {
  for (int mask = kTeam / 2; mask > 0; mask /= 2) {
    value = min(value, __shfl_xor_sync(team, value, mask));
  }
  return value;
}

struct Victim {
  int slot = -1;  // -1: there is none
  Key key = 0;
  int64_t row = 0;
  uint64_t score = 0;
  uint32_t epoch = 0;  // of its last claim
};

// Belongs to the team alone while it lasts.
struct TeamBucket {
  unsigned team;
  const TableView* table;
  BucketIndex bucket;
  unsigned word = 0;        // tags, and the control byte in the last lane
  unsigned candidates = 0;  // bit k: the key in slot k of this lane, there from the first, may go
  uint64_t scores[4];

  // victims: scores are read as well, at once with the tags.
  __device__ TeamBucket(unsigned lanes, const TableView& view, BucketIndex which, bool victims)
      : team(lanes), table(&view), bucket(which) {
    word = __ldcg(Address());
    if (victims) LoadScores();
#pragma unroll
    for (int k = 0; k < 4; ++k) candidates |= IsSlot(k) && !IsEmpty(k) ? 1u << k : 0u;
  }
  __device__ static int Member() { return Lane() % kTeam; }
  __device__ unsigned* Address() const {
    return reinterpret_cast<unsigned*>(&table->index.Sector(bucket)) + Member();
  }
  __device__ bool IsSlot(int k) const { return Member() < kTeam - 1 || k < 3; }
  __device__ bool IsEmpty(int k) const { return (word >> (8 * k) & 0xFFu) == 0; }

  // The first empty slot, in all lanes; kSlotsPerBucket: none.
  __device__ int FirstEmpty() const {
    int slot = kSlotsPerBucket;
#pragma unroll
    for (int k = 3; k >= 0; --k) {
      if (IsSlot(k) && IsEmpty(k)) slot = Member() * 4 + k;
    }
    return static_cast<int>(__reduce_min_sync(team, static_cast<unsigned>(slot)));
  }

  // A key takes the slot.
  __device__ void Put(int slot, KeyHash hash, Key key, int64_t row, uint64_t score) {
    if (slot / 4 != Member()) return;
    const int shift = 8 * (slot % 4);
    word = (word & ~(0xFFu << shift)) | static_cast<unsigned>(hash.Tag()) << shift;
    candidates &= ~(1u << slot % 4);
    __stcg(Address(), word);
    __stcg(reinterpret_cast<ulonglong2*>(&table->index.EntryAt({bucket, slot})),
           make_ulonglong2(key, static_cast<unsigned long long>(row)));
    __stcg(table->scores + ScorePlace(slot), score);
  }
  __device__ int64_t ScorePlace(int slot) const {
    return static_cast<int64_t>(bucket) * kScoresPerBucket + slot;
  }

  __device__ void MarkOverflow() {
    if (Member() != kTeam - 1) return;
    word |= unsigned{kOverflowMark} << 24;
    __stcg(Address(), word);
  }

  __device__ void LoadScores() {
    const ulonglong2* from =
        reinterpret_cast<const ulonglong2*>(table->scores + ScorePlace(Member() * 4));
    const ulonglong2 low = __ldcg(from), high = __ldcg(from + 1);
    scores[0] = low.x;
    scores[1] = low.y;
    scores[2] = high.x;
    scores[3] = high.y;
  }

  // FindVictim of core/victim.h; a victim is no candidate any more.
  __device__ Victim NextVictim(uint32_t oldest_pinned) {
    while (__any_sync(team, candidates != 0)) {
      uint64_t least = ~uint64_t{0};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if ((candidates >> k & 1u) != 0) least = min(least, scores[k]);
      }
      least = TeamMin(team, least);
      uint64_t hash = ~uint64_t{0};
      Entry entry{};
      int mine = -1;
      // All reads before the first use.
      ulonglong2 tied[4];
      unsigned ties = 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if ((candidates >> k & 1u) == 0 || scores[k] != least) continue;
        ties |= 1u << k;
        tied[k] = __ldcg(
            reinterpret_cast<const ulonglong2*>(&table->index.EntryAt({bucket, Member() * 4 + k})));
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if ((ties >> k & 1u) == 0) continue;
        const uint64_t its = HashKey(tied[k].x).bits;
        if (mine >= 0 && its >= hash) continue;
        hash = its;
        entry = Entry{tied[k].x, tied[k].y};
        mine = k;
      }
      const bool is_mine = TeamMin(team, hash) == hash && mine >= 0;
      uint32_t epoch = 0;
      if (is_mine) {
        epoch =
            static_cast<uint32_t>(__ldcg(table->stamps + static_cast<int64_t>(entry.Row())) >> 32);
        candidates &= ~(1u << mine);
      }
      const int source = __ffs(static_cast<int>(__ballot_sync(team, is_mine))) - 1;
      epoch = __shfl_sync(team, epoch, source);
      if (epoch >= oldest_pinned) continue;
      Victim victim;
      victim.slot = source % kTeam * 4 + __shfl_sync(team, mine, source);
      victim.key = __shfl_sync(team, entry.key, source);
      victim.row = __shfl_sync(team, static_cast<int64_t>(entry.Row()), source);
      victim.score = least;
      victim.epoch = epoch;
      return victim;
    }
    return Victim{};
  }
};

}  // namespace dynemb
