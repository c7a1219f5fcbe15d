// What assign and erase have in common: keys in a buffer of a few fixed sizes,
// and how many of them are meant.
#pragma once

#include "ffi/calls.h"
#include "table/registry.h"

namespace dynemb {

struct KeyCall {
  std::shared_ptr<Backend> backend;
  TokenPair token;
  KeyBatch keys;
};

// operands: token, count [1], keys [capacity, 2]; result: token; plan: [table]
inline Status ReadKeyCall(const CallFrame& frame, PlanCursor& plan, ArgCursor& args,
                          RetCursor& rets, KeyCall* call) {
  DYNEMB_RETURN_IF_ERROR(Registry::Global().Find(frame.group, frame.device, &call->backend));
  call->token = {args.NextS32(1), rets.NextS32(1)};
  const int32_t* count = args.NextS32(1);
  xffi::AnyBuffer keys = args.NextAny();
  DYNEMB_RETURN_IF_ERROR(args.status());
  DYNEMB_RETURN_IF_ERROR(rets.status());
  call->keys = {static_cast<int>(plan.Next()), static_cast<const Key*>(keys.untyped_data()), count,
                static_cast<int64_t>(keys.element_count()) / 2};
  return Status();
}

}  // namespace dynemb
