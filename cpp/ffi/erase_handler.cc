// operands: token, count, keys (see ReadKeyCall)
// results:  token
// plan:     [table]
#include "ffi/calls.h"
#include "ffi/key_operands.h"

namespace dynemb {

Status EraseCall(const CallFrame& frame) {
  PlanCursor plan(frame.plan);
  ArgCursor args(frame.args);
  RetCursor rets(frame.rets);
  KeyCall call{};
  DYNEMB_RETURN_IF_ERROR(ReadKeyCall(frame, plan, args, rets, &call));
  return call.backend->Erase(frame.exec, call.token, call.keys);
}

}  // namespace dynemb
