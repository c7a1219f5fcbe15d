// operands: token, count, keys (see ReadKeyCall)
// results:  token
// plan:     [table]
#include "ffi/frame.h"
#include "ffi/handlers.h"
#include "ffi/key_operands.h"

namespace dynemb {
namespace {

Status EraseCall(int64_t group, int32_t device, Plan plan_attr, xffi::RemainingArgs arg_list,
                 xffi::RemainingRets ret_list) {
  PlanCursor plan(plan_attr);
  ArgCursor args(arg_list);
  RetCursor rets(ret_list);
  KeyCall call{};
  DYNEMB_RETURN_IF_ERROR(ReadKeyCall(group, device, plan, args, rets, &call));
  return call.backend->Erase(call.token, call.keys);
}

xffi::Error Erase(int64_t group, Plan plan, int32_t device, xffi::RemainingArgs args,
                  xffi::RemainingRets rets) {
  return ToFfiError(EraseCall(group, device, plan, args, rets));
}

}  // namespace
}  // namespace dynemb

XLA_FFI_DEFINE_HANDLER_SYMBOL(DynembEraseCpu, dynemb::Erase,
                              xla::ffi::Ffi::Bind()
                                  .Attr<int64_t>("group")
                                  .Attr<dynemb::Plan>("plan")
                                  .Ctx<xla::ffi::DeviceOrdinal>()
                                  .RemainingArgs()
                                  .RemainingRets());
