// The verbs as handlers of XLA's platform "CUDA".
#include "ffi/cuda_handlers.h"

#include <cuda_runtime_api.h>

#include "ffi/calls.h"

namespace dynemb {
namespace {

void* AllocateScratch(void* allocator, Bytes bytes) {
  auto memory =
      static_cast<xffi::ScratchAllocator*>(allocator)->Allocate(static_cast<size_t>(bytes));
  return memory.has_value() ? *memory : nullptr;
}

template <Status (*Call)(const CallFrame&)>
xffi::Error OnDevice(int64_t group, Plan plan, int32_t device, cudaStream_t stream,
                     xffi::ScratchAllocator scratch, xffi::RemainingArgs args,
                     xffi::RemainingRets rets) {
  const Executor exec{stream, &AllocateScratch, &scratch};
  return ToFfiError(Call(CallFrame{exec, group, device, plan, args, rets}));
}

}  // namespace
}  // namespace dynemb

// Not kCmdBufferCompatible: a captured handler's host code would not run again, and
// ours decides about growth.
#define DYNEMB_DEFINE_CUDA_HANDLER(symbol, call)                                   \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(symbol, dynemb::OnDevice<dynemb::call>,            \
                                xla::ffi::Ffi::Bind()                              \
                                    .Attr<int64_t>("group")                        \
                                    .Attr<dynemb::Plan>("plan")                    \
                                    .Ctx<xla::ffi::DeviceOrdinal>()                \
                                    .Ctx<xla::ffi::PlatformStream<cudaStream_t>>() \
                                    .Ctx<xla::ffi::ScratchAllocator>()             \
                                    .RemainingArgs()                               \
                                    .RemainingRets())

DYNEMB_DEFINE_CUDA_HANDLER(DynembLookupCuda, LookupCall);
DYNEMB_DEFINE_CUDA_HANDLER(DynembFindCuda, FindCall);
DYNEMB_DEFINE_CUDA_HANDLER(DynembUpdateCuda, UpdateCall);
DYNEMB_DEFINE_CUDA_HANDLER(DynembAssignCuda, AssignCall);
DYNEMB_DEFINE_CUDA_HANDLER(DynembEraseCuda, EraseCall);
DYNEMB_DEFINE_CUDA_HANDLER(DynembCountStepsCuda, CountStepsCall);
