// The symbols that Python registers with XLA for the platform "CUDA".
#pragma once

#include "xla/ffi/api/ffi.h"

XLA_FFI_DECLARE_HANDLER_SYMBOL(DynembLookupCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(DynembFindCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(DynembCollectCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(DynembUpdateCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(DynembAssignCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(DynembEraseCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(DynembCountStepsCuda);
