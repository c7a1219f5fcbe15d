// The index of one table in host memory: where keys are placed, and how it
// doubles. Rows are only numbers here.
#pragma once

#include <cstdint>
#include <vector>

#include "core/bucket.h"
#include "core/probe.h"
#include "core/status.h"
#include "core/types.h"
#include "memory/growable_host_buffer.h"

namespace dynemb {

class CpuIndex {
 public:
  // Makes room for `num_buckets` (a power of two, not smaller than now) and
  // splits until they are in use. Keys keep their rows. kMemory: unchanged.
  Status Grow(uint64_t num_buckets);

  // The entry of `key`, placed with row kNoRow's bits if it was absent;
  // *inserted tells. The caller has made sure that a slot is free.
  Entry& FindOrPlace(KeyHash hash, Key key, bool* inserted);

  // Puts an absent key into an empty slot of its path; buckets before it are marked.
  void Place(SlotRef at, const Entry& entry);
  // A key goes on from this bucket to the next of its path.
  void Mark(BucketIndex bucket) { view_.Sector(bucket).control |= kOverflowMark; }

  // Frees the key's slot and returns its row; kNoRow if it was absent.
  RowIndex Erase(Key key);
  RowIndex Erase(SlotRef ref);
  void EraseAll();

  // Erased and evicted keys leave overflow marks behind, which make misses search on. Once an
  // eighth of the slots has been erased, marks are made exact again: a pass over the
  // index, paid for by the erasures.
  void TidyIfWorn();

  // Merges buckets until `num_buckets` (a power of two, not larger than now) are left,
  // and gives the memory of the others back. Keys keep their rows; they must fit.
  void Shrink(uint64_t num_buckets);

  const IndexView& view() const { return view_; }
  Bytes bytes() const { return static_cast<Bytes>(view_.num_buckets) * kBytesPerBucket; }

 private:
  void Split();
  void Merge(uint64_t num_buckets);
  void PlaceAgain(std::vector<Entry> overflowed);

  GrowableHostBuffer sectors_;
  GrowableHostBuffer entries_;
  IndexView view_{nullptr, nullptr, 0};
  uint64_t erased_ = 0;  // since marks were exact
};

}  // namespace dynemb
