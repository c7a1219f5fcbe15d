#include "ffi/residuals.h"

namespace dynemb {
namespace {

Status ReadResidual(const Backend& backend, PlanCursor& plan, ArgCursor& args,
                    LookupResidual* residual) {
  residual->tables.resize(static_cast<size_t>(plan.Next()));
  for (int& table : residual->tables) table = static_cast<int>(plan.Next());
  residual->header = args.NextS32(kHeaderCounts + static_cast<int64_t>(residual->tables.size()));
  for (size_t t = 0; t < residual->tables.size(); ++t) {
    xffi::AnyBuffer pairs = args.NextAny();
    residual->unique_rows.push_back(static_cast<const int64_t*>(pairs.untyped_data()));
    residual->unique_capacity.push_back(static_cast<int64_t>(pairs.element_count()) / 2);
  }
  int64_t num_features = plan.Next();
  for (int64_t f = 0; f < num_features; ++f) {
    FeatureGradient& gradient = residual->features.emplace_back();
    gradient.table = static_cast<int>(plan.Next());
    gradient.combiner = static_cast<Combiner>(plan.Next());
    const bool weighted = plan.Next() != 0;
    const bool ragged = plan.Next() != 0;
    if (gradient.table < 0 || static_cast<size_t>(gradient.table) >= backend.configs().size()) {
      return InvalidArgument("a plan names table ", gradient.table, " of ",
                             backend.configs().size(), "; reinstall dynemb_jax.");
    }
    const TableConfig& config = backend.configs()[static_cast<size_t>(gradient.table)];
    const bool pooled = gradient.combiner != Combiner::kNone;
    xffi::AnyBuffer index = args.NextAny();
    DYNEMB_RETURN_IF_ERROR(args.status());
    if (index.element_type() != xffi::DataType::S32) {
      return InvalidArgument("update: index is not int32; pass the Activations of lookup.");
    }
    std::span<const int64_t> dims(index.dimensions().begin(), index.dimensions().size());
    BagShape shape = BagsOf(dims, pooled && !ragged);
    gradient.num_bags = shape.num_bags;
    gradient.bag_length = shape.bag_length;
    if (ragged) {
      gradient.row_splits = args.NextRowSplits(dims);
      gradient.num_bags = gradient.row_splits.num_groups * gradient.row_splits.num_bags;
    }
    gradient.index = static_cast<const int32_t*>(index.untyped_data());
    const int64_t rows = pooled ? gradient.num_bags : gradient.NumIds();
    gradient.grads = args.NextRows(rows * config.dim, config.row_type);
    gradient.weights = weighted ? args.NextF32(gradient.NumIds()) : nullptr;
  }
  return args.status();
}

}  // namespace

Status ReadResiduals(const Backend& backend, PlanCursor& plan, ArgCursor& args,
                     std::vector<LookupResidual>* lookups) {
  lookups->resize(static_cast<size_t>(plan.Next()));
  for (LookupResidual& lookup : *lookups) {
    DYNEMB_RETURN_IF_ERROR(ReadResidual(backend, plan, args, &lookup));
  }
  return Status();
}

Status ReadOutsideTable(const Backend& backend, PlanCursor& plan, int* table) {
  *table = static_cast<int>(plan.Next());
  const bool known = *table >= 0 && static_cast<size_t>(*table) < backend.configs().size();
  if (known && backend.configs()[static_cast<size_t>(*table)].outside.has_value()) return Status();
  return InvalidArgument("a plan names table ", *table,
                         " as one whose optimizer is optax's; reinstall dynemb_jax.");
}

}  // namespace dynemb
