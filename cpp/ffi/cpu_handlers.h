// The symbols that Python registers with XLA for the platform "cpu".
#pragma once

#include "xla/ffi/api/ffi.h"

XLA_FFI_DECLARE_HANDLER_SYMBOL(DynembLookupCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(DynembFindCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(DynembCollectCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(DynembUpdateCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(DynembAssignCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(DynembEraseCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(DynembCountStepsCpu);
