// operands: token, features (see ReadFeatures)
// results:  token, per feature rows
// plan:     [features, features' fields ...]
#include "ffi/frame.h"
#include "ffi/handlers.h"
#include "table/registry.h"

namespace dynemb {
namespace {

Status FindCall(int64_t group, int32_t device, Plan plan_attr, xffi::RemainingArgs arg_list,
                xffi::RemainingRets ret_list) {
  std::shared_ptr<Backend> backend;
  DYNEMB_RETURN_IF_ERROR(Registry::Global().Find(group, device, &backend));
  PlanCursor plan(plan_attr);
  ArgCursor args(arg_list);
  RetCursor rets(ret_list);
  TokenPair token{args.NextS32(1), rets.NextS32(1)};
  std::vector<FeatureInput> features;
  DYNEMB_RETURN_IF_ERROR(ReadFeatures(*backend, plan.Next(), plan, args, &features));
  std::vector<float*> rows;
  for (const FeatureInput& feature : features) {
    int64_t dim = backend->configs()[static_cast<size_t>(feature.table)].dim;
    rows.push_back(rets.NextF32(feature.NumOutputRows() * dim));
  }
  DYNEMB_RETURN_IF_ERROR(args.status());
  DYNEMB_RETURN_IF_ERROR(rets.status());
  if (!plan.Ok()) return InvalidArgument("find: malformed plan; reinstall dynemb_jax.");
  return backend->Find(token, FindBatch{features, rows});
}

xffi::Error Find(int64_t group, Plan plan, int32_t device, xffi::RemainingArgs args,
                 xffi::RemainingRets rets) {
  return ToFfiError(FindCall(group, device, plan, args, rets));
}

}  // namespace
}  // namespace dynemb

XLA_FFI_DEFINE_HANDLER_SYMBOL(DynembFindCpu, dynemb::Find,
                              xla::ffi::Ffi::Bind()
                                  .Attr<int64_t>("group")
                                  .Attr<dynemb::Plan>("plan")
                                  .Ctx<xla::ffi::DeviceOrdinal>()
                                  .RemainingArgs()
                                  .RemainingRets());
