// XLA's call frame as our operands: buffers in order, attributes, errors. The
// layouts of operands are fixed here and in dynemb_jax/_primitives, nowhere else.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/status.h"
#include "table/backend.h"
#include "table/batch.h"
#include "xla/ffi/api/ffi.h"

namespace dynemb {

namespace xffi = ::xla::ffi;

xffi::Error ToFfiError(const Status& status);

using Plan = xffi::Span<const int64_t>;

// Numbers of the static plan, one after the other. Plans are made by our own
// Python code, so a short one is a bug there; it reads as zeros and Ok() tells.
class PlanCursor {
 public:
  explicit PlanCursor(Plan plan) : plan_(plan) {}
  int64_t Next() { return at_ < plan_.size() ? plan_[at_++] : (overrun_ = true, 0); }
  bool Ok() const { return !overrun_ && at_ == plan_.size(); }

 private:
  Plan plan_;
  size_t at_ = 0;
  bool overrun_ = false;
};

// Buffers one after the other. The first mismatch is kept in status(); what is
// read after it is null or empty.
class ArgCursor {
 public:
  explicit ArgCursor(xffi::RemainingArgs args) : args_(args) {}

  xffi::AnyBuffer NextAny();
  // The next buffer's elements, which must be of the type, and `count` of them.
  const float* NextF32(int64_t count);
  const int32_t* NextS32(int64_t count);
  const uint8_t* NextBool(int64_t count);
  // 64-bit numbers as uint32 pairs: [count, 2].
  const uint64_t* NextPairs(int64_t count);
  // `count` numbers, which are floats or of the type of a table's rows.
  RowsInput NextRows(int64_t count, RowType type);
  // Row splits [..., num_bags + 1] for ids of this shape, [..., capacity].
  RowSplits NextRowSplits(std::span<const int64_t> ids_shape);

  const Status& status() const { return status_; }
  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

 private:
  const void* NextTyped(xffi::DataType type, int64_t count);

  xffi::RemainingArgs args_;
  size_t at_ = 0;
  Status status_;
};

class RetCursor {
 public:
  explicit RetCursor(xffi::RemainingRets rets) : rets_(rets) {}

  float* NextF32(int64_t count);
  int32_t* NextS32(int64_t count);
  uint64_t* NextPairs(int64_t count);
  RowsOutput NextRows(int64_t count, RowType type);

  const Status& status() const { return status_; }

 private:
  void* NextTyped(xffi::DataType type, int64_t count);

  xffi::RemainingRets rets_;
  size_t at_ = 0;
  Status status_;
};

// Shape of the ids of a feature: bags of bag_length, the last axis if `bagged`.
struct BagShape {
  int64_t num_bags;
  int64_t bag_length;
};
BagShape BagsOf(std::span<const int64_t> dims, bool bagged);

// Reads the features of a lookup or find: plan per feature
// [table, combiner, wide, padding, weighted, scored], operands keys, lengths, mask
// or row splits, weights, scores [..., 2], where there are any.
Status ReadFeatures(const Backend& backend, int64_t num_features, PlanCursor& plan, ArgCursor& args,
                    std::vector<FeatureInput>* features);

}  // namespace dynemb
