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

void RowPool::ForgetClaims() { std::fill(stamps(), stamps() + capacity_, 0); }

}  // namespace dynemb
