// Rows of one table: [embedding | optimizer state], a stamp each and, in bounded
// tables, a score and perhaps the time of the last touch. A row keeps its number and its address
// for as long as its key lives.
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
  RowPool(const RowLayout& layout, bool scored, bool touched)
      : layout_(layout),
        stride_floats_(layout.StrideFloats()),
        scored_(scored),
        touched_(touched) {}

  // Room for `rows` in all. kMemory: unchanged.
  Status Grow(int64_t rows);

  // A row whose content is whatever it was; freed rows come first. The caller
  // has made room.
  RowIndex Take();
  void GiveBack(RowIndex row) { free_.push_back(row); }
  void GiveBackAll();

  // Free rows, ascending.
  const std::vector<RowIndex>& SortedFree();
  // All that a row has goes to another one.
  void Move(RowIndex from, RowIndex to);
  // The rows taken are the first ones now: the others are free, and what is behind
  // `capacity` goes back to the system.
  void Shrink(int64_t capacity);

  float* Row(RowIndex row) const {
    return reinterpret_cast<float*>(values_.data()) + static_cast<int64_t>(row) * stride_floats_;
  }
  // Last claim of the row: epoch << 32 | position among the unique rows.
  uint64_t* stamps() const { return reinterpret_cast<uint64_t*>(stamps_.data()); }
  // [capacity] where rows have scores.
  uint64_t* scores() const { return reinterpret_cast<uint64_t*>(scores_.data()); }
  // [capacity] where rows have a last touch of their own.
  uint64_t* touches() const { return reinterpret_cast<uint64_t*>(touches_.data()); }
  // Makes all rows look as if never claimed.
  void ForgetClaims();

  const RowLayout& layout() const { return layout_; }
  int64_t size() const { return used_ - static_cast<int64_t>(free_.size()); }
  int64_t capacity() const { return capacity_; }
  // Rows ever taken have numbers below this.
  int64_t high_water() const { return used_; }

 private:
  RowLayout layout_;
  int64_t stride_floats_;
  bool scored_;
  bool touched_;
  GrowableHostBuffer values_;
  GrowableHostBuffer stamps_;
  GrowableHostBuffer scores_;
  GrowableHostBuffer touches_;
  std::vector<RowIndex> free_;
  int64_t used_ = 0;
  int64_t capacity_ = 0;
};

}  // namespace dynemb
