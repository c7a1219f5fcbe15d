#include "ffi/frame.h"

#include <algorithm>

namespace dynemb {
namespace {

Status CheckBuffer(const xffi::AnyBuffer& buffer, xffi::DataType type, int64_t count) {
  if (buffer.element_type() == type && static_cast<int64_t>(buffer.element_count()) == count) {
    return Status();
  }
  return InvalidArgument("an operand has ", buffer.element_count(), " elements of XLA type ",
                         static_cast<int>(buffer.element_type()), ", expected ", count, " of type ",
                         static_cast<int>(type),
                         "; library and native module do not match, reinstall dynemb_jax.");
}

// What a buffer of rows holds: floats, or what the table keeps.
RowType TypeOf(xffi::DataType given, RowType kept) {
  return given == xffi::DataType::F32 ? RowType::kFloat32 : kept;
}
xffi::DataType DataTypeOf(RowType type) {
  switch (type) {
    case RowType::kBfloat16:
      return xffi::DataType::BF16;
    case RowType::kFloat16:
      return xffi::DataType::F16;
    case RowType::kFloat32:
      break;
  }
  return xffi::DataType::F32;
}

Status ShortFrame() {
  return InvalidArgument(
      "a call has too few operands; library and native module do not match, "
      "reinstall dynemb_jax.");
}

}  // namespace

xffi::Error ToFfiError(const Status& status) {
  xffi::ErrorCode code = xffi::ErrorCode::kUnknown;
  switch (status.code()) {
    case StatusCode::kOk:
      return xffi::Error::Success();
    case StatusCode::kInvalidArgument:
    case StatusCode::kConfig:
      code = xffi::ErrorCode::kInvalidArgument;
      break;
    case StatusCode::kStaleState:
    case StatusCode::kTooManyOutstanding:
    case StatusCode::kWrongDevice:
      code = xffi::ErrorCode::kFailedPrecondition;
      break;
    case StatusCode::kTableFull:
    case StatusCode::kMemory:
      code = xffi::ErrorCode::kResourceExhausted;
      break;
    case StatusCode::kClosed:
      code = xffi::ErrorCode::kNotFound;
      break;
    case StatusCode::kDevice:
      code = xffi::ErrorCode::kInternal;
      break;
  }
  return xffi::Error(code, status.ToString());
}

xffi::AnyBuffer ArgCursor::NextAny() {
  auto buffer = args_.get<xffi::AnyBuffer>(at_++);
  if (buffer.has_value()) return *buffer;
  Fail(ShortFrame());
  static XLA_FFI_Buffer empty{};
  return xffi::AnyBuffer(&empty);
}

const void* ArgCursor::NextTyped(xffi::DataType type, int64_t count) {
  xffi::AnyBuffer buffer = NextAny();
  if (!status_.ok()) return nullptr;
  Fail(CheckBuffer(buffer, type, count));
  return buffer.untyped_data();
}

const float* ArgCursor::NextF32(int64_t count) {
  return static_cast<const float*>(NextTyped(xffi::DataType::F32, count));
}
const int32_t* ArgCursor::NextS32(int64_t count) {
  return static_cast<const int32_t*>(NextTyped(xffi::DataType::S32, count));
}
const uint8_t* ArgCursor::NextBool(int64_t count) {
  return static_cast<const uint8_t*>(NextTyped(xffi::DataType::PRED, count));
}
const uint64_t* ArgCursor::NextPairs(int64_t count) {
  return static_cast<const uint64_t*>(NextTyped(xffi::DataType::U32, 2 * count));
}
RowsInput ArgCursor::NextRows(int64_t count, RowType type) {
  const xffi::AnyBuffer buffer = NextAny();
  if (!status_.ok()) return {nullptr, type};
  const RowType given = TypeOf(buffer.element_type(), type);
  Fail(CheckBuffer(buffer, DataTypeOf(given), count));
  return {buffer.untyped_data(), given};
}
RowSplits ArgCursor::NextRowSplits(std::span<const int64_t> ids_shape) {
  const xffi::AnyBuffer buffer = NextAny();
  if (!status_.ok()) return {};
  std::span<const int64_t> shape(buffer.dimensions().begin(), buffer.dimensions().size());
  RowSplits row_splits;
  if (ids_shape.empty() || shape.size() != ids_shape.size() || shape.back() < 1) {
    Fail(ShortFrame());
    return {};
  }
  row_splits.capacity = ids_shape.back();
  row_splits.num_bags = shape.back() - 1;
  row_splits.num_groups = BagsOf(ids_shape, true).num_bags;
  Fail(CheckBuffer(buffer, xffi::DataType::S32, row_splits.num_groups * shape.back()));
  row_splits.splits = static_cast<const int32_t*>(buffer.untyped_data());
  return row_splits;
}

void* RetCursor::NextTyped(xffi::DataType type, int64_t count) {
  auto buffer = rets_.get<xffi::AnyBuffer>(at_++);
  if (!buffer.has_value()) {
    if (status_.ok()) status_ = ShortFrame();
    return nullptr;
  }
  if (status_.ok()) status_ = CheckBuffer(**buffer, type, count);
  return (*buffer)->untyped_data();
}

float* RetCursor::NextF32(int64_t count) {
  return static_cast<float*>(NextTyped(xffi::DataType::F32, count));
}
int32_t* RetCursor::NextS32(int64_t count) {
  return static_cast<int32_t*>(NextTyped(xffi::DataType::S32, count));
}
uint64_t* RetCursor::NextPairs(int64_t count) {
  return static_cast<uint64_t*>(NextTyped(xffi::DataType::U32, 2 * count));
}
RowsOutput RetCursor::NextRows(int64_t count, RowType type) {
  auto buffer = rets_.get<xffi::AnyBuffer>(at_);
  const RowType given =
      buffer.has_value() ? TypeOf((*buffer)->element_type(), type) : RowType::kFloat32;
  return {NextTyped(DataTypeOf(given), count), given};
}

BagShape BagsOf(std::span<const int64_t> dims, bool bagged) {
  BagShape shape{1, 1};
  if (bagged && !dims.empty()) {
    shape.bag_length = dims.back();
    dims = dims.first(dims.size() - 1);
  }
  for (int64_t dim : dims) shape.num_bags *= dim;
  return shape;
}

Status ReadFeatures(const Backend& backend, int64_t num_features, PlanCursor& plan, ArgCursor& args,
                    std::vector<FeatureInput>* features) {
  for (int64_t f = 0; f < num_features; ++f) {
    FeatureInput& feature = features->emplace_back();
    feature.table = static_cast<int>(plan.Next());
    feature.combiner = static_cast<Combiner>(plan.Next());
    const bool wide = plan.Next() != 0;
    feature.padding = static_cast<Padding>(plan.Next());
    const bool weighted = plan.Next() != 0;
    const bool scored = plan.Next() != 0;
    if (feature.table < 0 || static_cast<size_t>(feature.table) >= backend.configs().size()) {
      return InvalidArgument("a plan names table ", feature.table, " of ", backend.configs().size(),
                             "; reinstall dynemb_jax.");
    }

    xffi::AnyBuffer keys = args.NextAny();
    DYNEMB_RETURN_IF_ERROR(args.status());
    feature.keys = keys.untyped_data();
    std::span<const int64_t> dims(keys.dimensions().begin(), keys.dimensions().size());
    if (wide) dims = dims.first(dims.size() - 1);
    switch (keys.element_type()) {
      case xffi::DataType::S32:
        feature.format = KeyFormat::kInt32;
        break;
      case xffi::DataType::U32:
        feature.format = wide ? KeyFormat::kBits64 : KeyFormat::kUint32;
        break;
      default:
        feature.format = KeyFormat::kBits64;  // S64, U64
    }
    const bool bagged = feature.combiner != Combiner::kNone || feature.padding == Padding::kLengths;
    BagShape shape = BagsOf(dims, bagged);
    feature.num_bags = shape.num_bags;
    feature.bag_length = shape.bag_length;
    feature.lengths = nullptr;
    feature.mask = nullptr;
    if (feature.padding == Padding::kLengths) feature.lengths = args.NextS32(feature.num_bags);
    if (feature.padding == Padding::kMask) feature.mask = args.NextBool(feature.NumIds());
    if (feature.padding == Padding::kSplits) {
      feature.row_splits = args.NextRowSplits(dims);
      feature.num_bags = feature.row_splits.num_groups * feature.row_splits.num_bags;
      feature.bag_length = 1;
    }
    feature.weights = weighted ? args.NextF32(feature.NumIds()) : nullptr;
    feature.scores = scored ? args.NextPairs(feature.NumIds()) : nullptr;
  }
  return args.status();
}

}  // namespace dynemb
