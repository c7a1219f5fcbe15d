// The path of a key through the buckets, and the search along it.
#pragma once

#include <cstdint>

#include "core/annotations.h"
#include "core/bucket.h"
#include "core/hash.h"
#include "core/types.h"

namespace dynemb {

// Double hashing: home, home + step, home + 2 step, ... modulo a power of two.
// When the table doubles, bucket j of the path stays where it was or moves by
// the old number of buckets, like the home bucket does.
class ProbePath {
 public:
  DYNEMB_HD ProbePath(KeyHash hash, uint64_t num_buckets)
      : bucket_(static_cast<uint64_t>(hash.Home(num_buckets))),
        step_(hash.Step()),
        mask_(num_buckets - 1) {}

  DYNEMB_HD BucketIndex bucket() const { return BucketIndex{bucket_}; }
  DYNEMB_HD void Advance() {
    bucket_ = (bucket_ + step_) & mask_;
    ++visited_;
  }
  // True once every bucket was visited; only tables without one free slot on
  // the whole path get there.
  DYNEMB_HD bool Exhausted() const { return visited_ > mask_; }

 private:
  uint64_t bucket_, step_, mask_;
  uint64_t visited_ = 0;
};

DYNEMB_HD int LowestBit(uint32_t mask) {
#if defined(__CUDA_ARCH__)
  return __ffs(static_cast<int>(mask)) - 1;
#else
  return __builtin_ctz(mask);
#endif
}

// Slot of `key` in bucket `b`, or -1.
DYNEMB_HD int FindInBucket(const IndexView& view, BucketIndex b, KeyHash hash, Key key) {
  uint32_t candidates = view.Sector(b).Match(hash.Tag());
  while (candidates != 0) {
    int slot = LowestBit(candidates);
    if (view.EntryAt({b, slot}).key == key) return slot;
    candidates &= candidates - 1;
  }
  return -1;
}

// Where `key` is stored; slot -1 when it is not. Relies on B2 to stop early.
DYNEMB_HD SlotRef FindSlot(const IndexView& view, KeyHash hash, Key key) {
  for (ProbePath path(hash, view.num_buckets); !path.Exhausted(); path.Advance()) {
    BucketIndex b = path.bucket();
    int slot = FindInBucket(view, b, hash, key);
    if (slot >= 0) return {b, slot};
    if (!view.Sector(b).Overflowed()) break;
  }
  return {BucketIndex{0}, -1};
}

DYNEMB_HD RowIndex FindRow(const IndexView& view, KeyHash hash, Key key) {
  SlotRef ref = FindSlot(view, hash, key);
  return ref.slot < 0 ? kNoRow : view.EntryAt(ref).Row();
}

}  // namespace dynemb
