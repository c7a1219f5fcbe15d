// What the bytes of the index mean.
//
//   bucket = one tag sector + 31 entries
//
//   TagSector, 32 bytes      |tag 0|tag 1| ... |tag 30|control|
//                             0 = empty slot; else 8 bits of the key's hash
//   Entry, 16 bytes, x 31    |key, 64 bits|row, 40 bits|spare, 24 bits|
//
// Numbered invariants, cited where relied upon:
//   B1  A slot is occupied exactly when its tag is not 0; the key of an empty
//       slot means nothing. Hence no key value is reserved.
//   B2  Every bucket before that of a key on its path carries the overflow mark.
//       Hence a search may stop at the first bucket without the mark.
//   B3  A key occurs at most once.
#pragma once

#include <cstdint>

#include "core/annotations.h"
#include "core/types.h"

#if !defined(__CUDA_ARCH__) && defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace dynemb {

inline constexpr int kSlotsPerBucket = 31;
inline constexpr uint32_t kSlotMask = (uint32_t{1} << kSlotsPerBucket) - 1;
inline constexpr uint8_t kOverflowMark = 1;
inline constexpr int64_t kMaxRows = int64_t{1} << 40;

struct alignas(32) TagSector {
  uint8_t tags[kSlotsPerBucket];
  uint8_t control;

  DYNEMB_HD bool Overflowed() const { return (control & kOverflowMark) != 0; }

  // Bit i is set where tags[i] == tag.
  DYNEMB_HD uint32_t Match(uint8_t tag) const {
#if !defined(__CUDA_ARCH__) && defined(__SSE2__)
    const __m128i* half = reinterpret_cast<const __m128i*>(this);
    __m128i wanted = _mm_set1_epi8(static_cast<char>(tag));
    uint32_t low =
        static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_load_si128(half), wanted)));
    uint32_t high =
        static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_load_si128(half + 1), wanted)));
    return (low | (high << 16)) & kSlotMask;
#else
    uint32_t mask = 0;
    for (int i = 0; i < kSlotsPerBucket; ++i) {
      mask |= static_cast<uint32_t>(tags[i] == tag) << i;
    }
    return mask;
#endif
  }
  DYNEMB_HD uint32_t Empty() const { return Match(0); }
};
static_assert(sizeof(TagSector) == 32);

struct Entry {
  Key key;
  uint64_t row_and_spare;  // spare: 24 bits for the frequency of later tiers

  DYNEMB_HD RowIndex Row() const {
    return RowIndex{static_cast<int64_t>(row_and_spare & (kMaxRows - 1))};
  }
};
static_assert(sizeof(Entry) == 16);

// Of a bounded table on a device: a power of two, so that a bucket's scores are aligned.
inline constexpr int kScoresPerBucket = 32;

inline constexpr Bytes kBytesPerBucket = sizeof(TagSector) + kSlotsPerBucket * sizeof(Entry);

// Place of one slot.
struct SlotRef {
  BucketIndex bucket;
  int slot;  // -1: none
};

// The index as algorithms see it: copied by value, owns nothing.
struct IndexView {
  TagSector* sectors;    // [num_buckets]
  Entry* entries;        // [num_buckets][kSlotsPerBucket]
  uint64_t num_buckets;  // a power of two

  DYNEMB_HD TagSector& Sector(BucketIndex b) const { return sectors[static_cast<uint64_t>(b)]; }
  DYNEMB_HD Entry& EntryAt(SlotRef ref) const {
    return entries[static_cast<uint64_t>(ref.bucket) * kSlotsPerBucket +
                   static_cast<uint64_t>(ref.slot)];
  }
};

}  // namespace dynemb
