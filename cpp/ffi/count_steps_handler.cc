// operands: token
// results:  token, steps [1]
// plan:     []
#include "ffi/calls.h"
#include "table/registry.h"

namespace dynemb {

Status CountStepsCall(const CallFrame& frame) {
  std::shared_ptr<Backend> backend;
  DYNEMB_RETURN_IF_ERROR(Registry::Global().Find(frame.group, frame.device, &backend));
  ArgCursor args(frame.args);
  RetCursor rets(frame.rets);
  TokenPair token{args.NextS32(1), rets.NextS32(1)};
  int32_t* steps = rets.NextS32(1);
  DYNEMB_RETURN_IF_ERROR(args.status());
  DYNEMB_RETURN_IF_ERROR(rets.status());
  return backend->CountSteps(frame.exec, token, steps);
}

}  // namespace dynemb
