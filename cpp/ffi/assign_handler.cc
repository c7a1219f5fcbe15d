// operands: token, count, keys (see ReadKeyCall), rows [capacity, dim], and where
//           state is given, state [capacity, StateFloats]
// results:  token
// plan:     [table, has state]
#include "ffi/calls.h"
#include "ffi/key_operands.h"

namespace dynemb {

Status AssignCall(const CallFrame& frame) {
  PlanCursor plan(frame.plan);
  ArgCursor args(frame.args);
  RetCursor rets(frame.rets);
  KeyCall call{};
  DYNEMB_RETURN_IF_ERROR(ReadKeyCall(frame, plan, args, rets, &call));
  const RowLayout layout = call.backend->configs()[static_cast<size_t>(call.keys.table)].Layout();
  AssignBatch batch{call.keys, args.NextF32(call.keys.capacity * layout.dim), nullptr};
  if (plan.Next() != 0) batch.state = args.NextF32(call.keys.capacity * layout.StateFloats());
  DYNEMB_RETURN_IF_ERROR(args.status());
  return call.backend->Assign(frame.exec, call.token, batch);
}

}  // namespace dynemb
