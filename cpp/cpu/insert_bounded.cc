// New keys of a bounded table: level by level, so that a device can do all keys of a
// level at once with the same result.
#include <numeric>
#include <vector>

#include "core/probe.h"
#include "core/victim.h"
#include "cpu/cpu_table.h"

namespace dynemb {

void CpuTable::InsertAll(const BoundedInsert& call, std::span<NewKey> keys) {
  const IndexView& view = index_.view();
  std::vector<size_t> open(keys.size()), left_over;
  std::iota(open.begin(), open.end(), size_t{0});
  for (int level = 0; !open.empty(); ++level) {
    left_over.clear();
    for (size_t n : open) {
      NewKey& one = keys[n];
      const bool has_row = static_cast<int64_t>(n) < call.granted;
      ProbePath path(HashKey(one.key), view.num_buckets);
      for (int step = 0; step < level; ++step) path.Advance();
      SlotRef at{path.bucket(), -1};
      if (has_row) {
        const uint32_t empty = view.Sector(at.bucket).Empty();
        if (empty != 0) at.slot = LowestBit(empty);
        if (at.slot >= 0) one.row = pool_.Take();
      } else if (call.evicts) {
        const RowMarks marks{pool_.stamps(), pool_.scores(), call.oldest_pinned};
        at.slot = FindVictim(view, at.bucket, marks);
        if (at.slot >= 0) {
          const Key victim = view.EntryAt(at).key;
          one.row = index_.Erase(at);
          one.has_evicted = true;
          one.evicted = LeaveRow(victim, one.row);
        }
      }
      if (at.slot >= 0) {
        index_.Place(at, Entry{one.key, static_cast<uint64_t>(one.row)});
        PinNew(one.row, call.epoch);
        continue;
      }
      index_.Mark(at.bucket);
      path.Advance();
      const bool may_evict = call.evicts && level + 1 < kVictimBuckets && !path.Exhausted();
      if (has_row || may_evict) left_over.push_back(n);
    }
    open.swap(left_over);
  }
  for (const NewKey& one : keys) {
    if (!one.has_evicted) continue;
    ++counters.evicted;
    Record(one.evicted);
  }
}

}  // namespace dynemb
