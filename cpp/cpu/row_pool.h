// Rows of one table: [embedding | optimizer state] and a stamp each. A row keeps
// its number and its address for as long as its key lives.
#pragma once

#include <cstdint>
#include <vector>

#include "core/row_layout.h"
#include "core/status.h"
#include "core/types.h"
#include "memory/growable_host_buffer.h"

namespace dynemb {

class RowPool {
 public:
  explicit RowPool(const RowLayout& layout)
      : layout_(layout), stride_floats_(layout.StrideFloats()) {}

  // Room for `rows` in all. kMemory: unchanged.
  Status Grow(int64_t rows);

  // A row whose content is whatever it was; freed rows come first. The caller
  // has made room.
  RowIndex Take();
  void GiveBack(RowIndex row) { free_.push_back(row); }

  float* Row(RowIndex row) const {
    return reinterpret_cast<float*>(values_.data()) + static_cast<int64_t>(row) * stride_floats_;
  }
  // Last claim of the row: epoch << 32 | position among the unique rows.
  uint64_t* stamps() const { return reinterpret_cast<uint64_t*>(stamps_.data()); }
  // A number for one pass of claims that no stamp carries yet.
  uint32_t NextEpoch();

  const RowLayout& layout() const { return layout_; }
  int64_t size() const { return used_ - static_cast<int64_t>(free_.size()); }
  int64_t capacity() const { return capacity_; }
  // Rows ever taken have numbers below this.
  int64_t high_water() const { return used_; }

 private:
  RowLayout layout_;
  int64_t stride_floats_;
  GrowableHostBuffer values_;
  GrowableHostBuffer stamps_;
  std::vector<RowIndex> free_;
  int64_t used_ = 0;
  int64_t capacity_ = 0;
  uint32_t epoch_ = 0;
};

}  // namespace dynemb
