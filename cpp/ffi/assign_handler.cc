// operands: token, count, keys (see ReadKeyCall), rows [capacity, dim], and where
//           state is given, state [capacity, StateFloats]
// results:  token
// plan:     [table, has state]
#include "ffi/frame.h"
#include "ffi/handlers.h"
#include "ffi/key_operands.h"

namespace dynemb {
namespace {

Status AssignCall(int64_t group, int32_t device, Plan plan_attr, xffi::RemainingArgs arg_list,
                  xffi::RemainingRets ret_list) {
  PlanCursor plan(plan_attr);
  ArgCursor args(arg_list);
  RetCursor rets(ret_list);
  KeyCall call{};
  DYNEMB_RETURN_IF_ERROR(ReadKeyCall(group, device, plan, args, rets, &call));
  const RowLayout layout = call.backend->configs()[static_cast<size_t>(call.keys.table)].Layout();
  AssignBatch batch{call.keys, args.NextF32(call.capacity * layout.dim), nullptr};
  if (plan.Next() != 0) batch.state = args.NextF32(call.capacity * layout.StateFloats());
  DYNEMB_RETURN_IF_ERROR(args.status());
  return call.backend->Assign(call.token, batch);
}

xffi::Error Assign(int64_t group, Plan plan, int32_t device, xffi::RemainingArgs args,
                   xffi::RemainingRets rets) {
  return ToFfiError(AssignCall(group, device, plan, args, rets));
}

}  // namespace
}  // namespace dynemb

XLA_FFI_DEFINE_HANDLER_SYMBOL(DynembAssignCpu, dynemb::Assign,
                              xla::ffi::Ffi::Bind()
                                  .Attr<int64_t>("group")
                                  .Attr<dynemb::Plan>("plan")
                                  .Ctx<xla::ffi::DeviceOrdinal>()
                                  .RemainingArgs()
                                  .RemainingRets());
