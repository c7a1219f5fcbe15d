// One call of XLA, decoded per verb. The same for every platform; the handlers of
// a platform add where to run.
#pragma once

#include "ffi/frame.h"
#include "table/executor.h"

namespace dynemb {

struct CallFrame {
  const Executor& exec;
  int64_t group;
  int32_t device;
  Plan plan;
  xffi::RemainingArgs args;
  xffi::RemainingRets rets;
};

// Operands, results and plan of each are listed at its definition.
Status LookupCall(const CallFrame& frame);
Status FindCall(const CallFrame& frame);
Status CollectCall(const CallFrame& frame);
Status UpdateCall(const CallFrame& frame);
Status AssignCall(const CallFrame& frame);
Status EraseCall(const CallFrame& frame);
Status CountStepsCall(const CallFrame& frame);

}  // namespace dynemb
