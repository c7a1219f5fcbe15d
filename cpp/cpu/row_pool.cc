#include "cpu/row_pool.h"

#include <algorithm>

namespace dynemb {

Status RowPool::Grow(int64_t rows) {
  if (rows <= capacity_) return Status();
  DYNEMB_RETURN_IF_ERROR(values_.Commit(rows * layout_.StrideBytes()));
  DYNEMB_RETURN_IF_ERROR(stamps_.Commit(rows * static_cast<Bytes>(sizeof(uint64_t))));
  if (scored_) {
    DYNEMB_RETURN_IF_ERROR(scores_.Commit(rows * static_cast<Bytes>(sizeof(uint64_t))));
  }
  if (touched_) {
    DYNEMB_RETURN_IF_ERROR(touches_.Commit(rows * static_cast<Bytes>(sizeof(uint64_t))));
  }
  capacity_ = rows;
  return Status();
}

RowIndex RowPool::Take() {
  if (free_.empty()) return RowIndex{used_++};
  RowIndex row = free_.back();
  free_.pop_back();
  return row;
}

void RowPool::GiveBackAll() {
  free_.clear();
  used_ = 0;
}

const std::vector<RowIndex>& RowPool::SortedFree() {
  std::sort(free_.begin(), free_.end());
  return free_;
}

void RowPool::Move(RowIndex from, RowIndex to) {
  const int64_t source = static_cast<int64_t>(from), target = static_cast<int64_t>(to);
  std::copy_n(Row(from), stride_floats_, Row(to));
  stamps()[target] = stamps()[source];
  if (scored_) scores()[target] = scores()[source];
  if (touched_) touches()[target] = touches()[source];
}

void RowPool::Shrink(int64_t capacity) {
  used_ = size();
  free_ = std::vector<RowIndex>();
  capacity_ = capacity;
  values_.Shrink(capacity * layout_.StrideBytes());
  const Bytes words = capacity * static_cast<Bytes>(sizeof(uint64_t));
  stamps_.Shrink(words);
  if (scored_) scores_.Shrink(words);
  if (touched_) touches_.Shrink(words);
}

void RowPool::ForgetClaims() { std::fill(stamps(), stamps() + capacity_, 0); }

}  // namespace dynemb
