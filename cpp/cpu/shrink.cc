// Gives back what erased keys have left: rows close up, the index merges its buckets,
// and the memory behind both returns to the system. A host call.
#include <algorithm>
#include <mutex>
#include <vector>

#include "cpu/cpu_backend.h"

namespace dynemb {
namespace {

// Rows that one pass over the index can move: bounds what is remembered meanwhile, 16
// bytes each.
constexpr int64_t kRowsPerPass = int64_t{1} << 22;

// Calls body(slot) for every key of the index.
template <class Body>
void ForEachKey(const IndexView& view, Body&& body) {
  for (uint64_t b = 0; b < view.num_buckets; ++b) {
    uint32_t occupied = ~view.Sector(BucketIndex{b}).Empty() & kSlotMask;
    for (; occupied != 0; occupied &= occupied - 1) {
      body(SlotRef{BucketIndex{b}, LowestBit(occupied)});
    }
  }
}

}  // namespace

// The rows behind the first pool_.size() move into free ones among them, the smallest
// into the smallest.
void CpuTable::CloseUpRows() {
  const int64_t rows = pool_.size();
  const std::vector<RowIndex>& holes = pool_.SortedFree();
  size_t hole = 0;
  std::vector<SlotRef> slots;
  for (int64_t base = rows; base < pool_.high_water(); base += kRowsPerPass) {
    const int64_t width = std::min(kRowsPerPass, pool_.high_water() - base);
    slots.assign(static_cast<size_t>(width), SlotRef{BucketIndex{0}, -1});
    ForEachKey(index_.view(), [&](SlotRef slot) {
      const int64_t behind = static_cast<int64_t>(index_.view().EntryAt(slot).Row()) - base;
      if (behind >= 0 && behind < width) slots[static_cast<size_t>(behind)] = slot;
    });
    for (const SlotRef& slot : slots) {
      if (slot.slot < 0) continue;
      Entry& entry = index_.view().EntryAt(slot);
      const RowIndex to = holes[hole++];
      pool_.Move(entry.Row(), to);
      entry.row_and_spare = static_cast<uint64_t>(to);
    }
  }
}

void CpuTable::Shrink() {
  const int64_t rows = pool_.size();
  if (pool_.high_water() > rows) CloseUpRows();
  // As much as a new table of these rows would take.
  const Room room = PlanRoom(config_, Room{1, 0}, 0, rows).room;
  pool_.Shrink(std::min(pool_.capacity(), room.row_capacity));
  index_.Shrink(std::min(index_.view().num_buckets, room.num_buckets));
  scratch_ = TableScratch{};
}

Status CpuBackend::Shrink(int32_t from, std::vector<Bytes>* freed, int32_t* to) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  DYNEMB_RETURN_IF_ERROR(CheckToken(from));
  for (const auto& table : tables_) {
    const TableStats before = table->Stats();
    table->Shrink();
    const TableStats after = table->Stats();
    freed->push_back(before.index_bytes + before.row_bytes - after.index_bytes - after.row_bytes);
  }
  ForgetLookups();  // rows may have moved
  Advance({&from, to});
  return Status();
}

}  // namespace dynemb
