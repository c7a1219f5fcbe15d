#include "cpu/row_pool.h"

#include <algorithm>

namespace dynemb {

Status RowPool::Grow(int64_t rows) {
  if (rows <= capacity_) return Status();
  DYNEMB_RETURN_IF_ERROR(values_.Commit(rows * layout_.StrideBytes()));
  DYNEMB_RETURN_IF_ERROR(stamps_.Commit(rows * static_cast<Bytes>(sizeof(uint64_t))));
  capacity_ = rows;
  return Status();
}

RowIndex RowPool::Take() {
  if (free_.empty()) return RowIndex{used_++};
  RowIndex row = free_.back();
  free_.pop_back();
  return row;
}

uint32_t RowPool::NextEpoch() {
  if (++epoch_ == 0) {  // after 2^32 passes: old stamps would look fresh
    std::fill(stamps(), stamps() + capacity_, 0);
    epoch_ = 1;
  }
  return epoch_;
}

}  // namespace dynemb
