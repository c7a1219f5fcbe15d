// The verbs as handlers of XLA's platform "CUDA".
#include "ffi/cuda_handlers.h"

#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include "ffi/calls.h"

namespace dynemb {
namespace {

void* AllocateScratch(void* allocator, Bytes bytes) {
  auto memory =
      static_cast<xffi::ScratchAllocator*>(allocator)->Allocate(static_cast<size_t>(bytes));
  return memory.has_value() ? *memory : nullptr;
}

// Shows in a profiler how long the host is busy with a call; the kernels that it
// enqueues are listed below it. Costs next to nothing where no profiler listens.
class ProfilerRange {
 public:
  explicit ProfilerRange(const char* name) { nvtxRangePushA(name); }
  ~ProfilerRange() { nvtxRangePop(); }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

// A verb: its call, and the name of its ranges.
struct Verb {
  Status (*call)(const CallFrame&);
  const char* range;
};
constexpr Verb kLookup{&LookupCall, "dynemb.lookup"};
constexpr Verb kFind{&FindCall, "dynemb.find"};
constexpr Verb kCollect{&CollectCall, "dynemb.collect"};
constexpr Verb kUpdate{&UpdateCall, "dynemb.update"};
constexpr Verb kAssign{&AssignCall, "dynemb.assign"};
constexpr Verb kErase{&EraseCall, "dynemb.erase"};
constexpr Verb kCountSteps{&CountStepsCall, "dynemb.count_steps"};

template <const Verb& verb>
xffi::Error OnDevice(int64_t group, Plan plan, int32_t device, cudaStream_t stream,
                     xffi::ScratchAllocator scratch, xffi::RemainingArgs args,
                     xffi::RemainingRets rets) {
  const ProfilerRange range(verb.range);
  const Executor exec{stream, &AllocateScratch, &scratch};
  return ToFfiError(verb.call(CallFrame{exec, group, device, plan, args, rets}));
}

}  // namespace
}  // namespace dynemb

// Not kCmdBufferCompatible: a captured handler's host code would not run again, and
// ours decides about growth.
#define DYNEMB_DEFINE_CUDA_HANDLER(symbol, verb)                                   \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(symbol, dynemb::OnDevice<dynemb::verb>,            \
                                xla::ffi::Ffi::Bind()                              \
                                    .Attr<int64_t>("group")                        \
                                    .Attr<dynemb::Plan>("plan")                    \
                                    .Ctx<xla::ffi::DeviceOrdinal>()                \
                                    .Ctx<xla::ffi::PlatformStream<cudaStream_t>>() \
                                    .Ctx<xla::ffi::ScratchAllocator>()             \
                                    .RemainingArgs()                               \
                                    .RemainingRets())

DYNEMB_DEFINE_CUDA_HANDLER(DynembLookupCuda, kLookup);
DYNEMB_DEFINE_CUDA_HANDLER(DynembFindCuda, kFind);
DYNEMB_DEFINE_CUDA_HANDLER(DynembCollectCuda, kCollect);
DYNEMB_DEFINE_CUDA_HANDLER(DynembUpdateCuda, kUpdate);
DYNEMB_DEFINE_CUDA_HANDLER(DynembAssignCuda, kAssign);
DYNEMB_DEFINE_CUDA_HANDLER(DynembEraseCuda, kErase);
DYNEMB_DEFINE_CUDA_HANDLER(DynembCountStepsCuda, kCountSteps);
