// The native module of platform "CUDA".
#include "cuda/cuda_backend.h"
#include "ffi/cuda_handlers.h"
#include "memory/cuda_check.h"
#include "memory/cuda_driver.h"
#include "memory/device_scope.h"
#include "python/bindings.h"

namespace {

// For tests: what the driver is made to refuse, and what it has given.
void BindDriver(nb::module_& m) {
  m.def(
      "fail_driver_call",
      [](const std::string& name, int64_t nth, int error) {
        int64_t left = 0;
        dynemb::Raise(dynemb::CudaDriver::FailCall(name, nth, static_cast<CUresult>(error), &left));
        return left;
      },
      nb::arg("name"), nb::arg("nth"),
      nb::arg("error") = static_cast<int>(CUDA_ERROR_OUT_OF_MEMORY));
  m.def("driver_use", [] {
    const dynemb::CudaDriver* driver = nullptr;
    dynemb::Raise(dynemb::CudaDriver::Get(&driver));
    const dynemb::DriverUse use = driver->Use();
    nb::dict out;
    out["ranges"] = use.ranges;
    out["allocations"] = use.allocations;
    out["mappings"] = use.mappings;
    out["reserved_bytes"] = use.reserved_bytes;
    out["allocated_bytes"] = use.allocated_bytes;
    out["mapped_bytes"] = use.mapped_bytes;
    return out;
  });
  m.def(
      "free_bytes",
      [](int32_t device) {
        const dynemb::DeviceScope scope(device);
        dynemb::Raise(scope.status());
        size_t free = 0, total = 0;
        dynemb::Raise(dynemb::CudaStatus(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
        return free;
      },
      nb::arg("device"));
}

}  // namespace

NB_MODULE(_native_cuda, m) {
  m.def("registrations", [] {
    nanobind::dict handlers;
    handlers["dynemb_lookup"] = dynemb::Capsule(DynembLookupCuda);
    handlers["dynemb_find"] = dynemb::Capsule(DynembFindCuda);
    handlers["dynemb_collect"] = dynemb::Capsule(DynembCollectCuda);
    handlers["dynemb_update"] = dynemb::Capsule(DynembUpdateCuda);
    handlers["dynemb_assign"] = dynemb::Capsule(DynembAssignCuda);
    handlers["dynemb_erase"] = dynemb::Capsule(DynembEraseCuda);
    handlers["dynemb_count_steps"] = dynemb::Capsule(DynembCountStepsCuda);
    return handlers;
  });
  m.def("allow_cooperative_launch", &dynemb::CudaBackend::AllowCooperativeLaunch,
        nanobind::arg("allowed"));
  dynemb::BindGroups<&dynemb::CudaBackend::Create, dynemb::DeviceScope>(m);
  BindDriver(m);
}
