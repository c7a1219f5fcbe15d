// The verbs as handlers of XLA's platform "cpu".
#include "ffi/cpu_handlers.h"

#include "ffi/calls.h"

namespace dynemb {
namespace {

template <Status (*Call)(const CallFrame&)>
xffi::Error OnHost(int64_t group, Plan plan, int32_t device, xffi::RemainingArgs args,
                   xffi::RemainingRets rets) {
  return ToFfiError(Call(CallFrame{Executor{}, group, device, plan, args, rets}));
}

}  // namespace
}  // namespace dynemb

#define DYNEMB_DEFINE_CPU_HANDLER(symbol, call)                       \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(symbol, dynemb::OnHost<dynemb::call>, \
                                xla::ffi::Ffi::Bind()                 \
                                    .Attr<int64_t>("group")           \
                                    .Attr<dynemb::Plan>("plan")       \
                                    .Ctx<xla::ffi::DeviceOrdinal>()   \
                                    .RemainingArgs()                  \
                                    .RemainingRets())

DYNEMB_DEFINE_CPU_HANDLER(DynembLookupCpu, LookupCall);
DYNEMB_DEFINE_CPU_HANDLER(DynembFindCpu, FindCall);
DYNEMB_DEFINE_CPU_HANDLER(DynembCollectCpu, CollectCall);
DYNEMB_DEFINE_CPU_HANDLER(DynembUpdateCpu, UpdateCall);
DYNEMB_DEFINE_CPU_HANDLER(DynembAssignCpu, AssignCall);
DYNEMB_DEFINE_CPU_HANDLER(DynembEraseCpu, EraseCall);
DYNEMB_DEFINE_CPU_HANDLER(DynembCountStepsCpu, CountStepsCall);
