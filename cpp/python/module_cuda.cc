// The native module of platform "CUDA".
#include "cuda/cuda_backend.h"
#include "ffi/cuda_handlers.h"
#include "python/bindings.h"

NB_MODULE(_native_cuda, m) {
  m.def("registrations", [] {
    nanobind::dict handlers;
    handlers["dynemb_lookup"] = dynemb::Capsule(DynembLookupCuda);
    handlers["dynemb_find"] = dynemb::Capsule(DynembFindCuda);
    handlers["dynemb_update"] = dynemb::Capsule(DynembUpdateCuda);
    handlers["dynemb_assign"] = dynemb::Capsule(DynembAssignCuda);
    handlers["dynemb_erase"] = dynemb::Capsule(DynembEraseCuda);
    handlers["dynemb_count_steps"] = dynemb::Capsule(DynembCountStepsCuda);
    return handlers;
  });
  m.def("allow_cooperative_launch", &dynemb::CudaBackend::AllowCooperativeLaunch,
        nanobind::arg("allowed"));
  dynemb::BindGroups<&dynemb::CudaBackend::Create>(m);
}
