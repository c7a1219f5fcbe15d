// The native module of platform "cpu".
#include "cpu/cpu_backend.h"
#include "ffi/cpu_handlers.h"
#include "python/bindings.h"

namespace {

// Host memory is everywhere.
struct HostScope {
  explicit HostScope(int32_t) {}
  dynemb::Status status() const { return {}; }
};

}  // namespace

NB_MODULE(_native, m) {
  m.def("registrations", [] {
    nanobind::dict handlers;
    handlers["dynemb_lookup"] = dynemb::Capsule(DynembLookupCpu);
    handlers["dynemb_find"] = dynemb::Capsule(DynembFindCpu);
    handlers["dynemb_collect"] = dynemb::Capsule(DynembCollectCpu);
    handlers["dynemb_update"] = dynemb::Capsule(DynembUpdateCpu);
    handlers["dynemb_assign"] = dynemb::Capsule(DynembAssignCpu);
    handlers["dynemb_erase"] = dynemb::Capsule(DynembEraseCpu);
    handlers["dynemb_count_steps"] = dynemb::Capsule(DynembCountStepsCpu);
    return handlers;
  });
  dynemb::BindGroups<&dynemb::CpuBackend::Create, HostScope>(m);
}
