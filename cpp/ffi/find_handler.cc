// operands: token, features (see ReadFeatures)
// results:  token, per feature rows
// plan:     [features, features' fields ...]
#include "ffi/calls.h"
#include "table/registry.h"

namespace dynemb {

Status FindCall(const CallFrame& frame) {
  std::shared_ptr<Backend> backend;
  DYNEMB_RETURN_IF_ERROR(Registry::Global().Find(frame.group, frame.device, &backend));
  PlanCursor plan(frame.plan);
  ArgCursor args(frame.args);
  RetCursor rets(frame.rets);
  TokenPair token{args.NextS32(1), rets.NextS32(1)};
  std::vector<FeatureInput> features;
  DYNEMB_RETURN_IF_ERROR(ReadFeatures(*backend, plan.Next(), plan, args, &features));
  std::vector<RowsOutput> rows;
  for (const FeatureInput& feature : features) {
    const TableConfig& config = backend->configs()[static_cast<size_t>(feature.table)];
    rows.push_back(rets.NextRows(feature.NumOutputRows() * config.dim, config.row_type));
  }
  DYNEMB_RETURN_IF_ERROR(args.status());
  DYNEMB_RETURN_IF_ERROR(rets.status());
  if (!plan.Ok()) return InvalidArgument("find: malformed plan; reinstall dynemb_jax.");
  return backend->Find(frame.exec, token, FindBatch{features, rows});
}

}  // namespace dynemb
