// operands: token, learning rates [tables of the group], step [1], lookups (see
//           ReadResiduals), then per moved table what collect gave, less grads:
//           unique_rows, count, rows, state vectors, and scalars where there are any
// results:  token
// plan:     [lookups' ..., moved tables, table ...]
#include "ffi/calls.h"
#include "ffi/residuals.h"
#include "table/registry.h"

namespace dynemb {
namespace {

Status ReadMoved(const Backend& backend, PlanCursor& plan, ArgCursor& args, MovedRows* moved) {
  DYNEMB_RETURN_IF_ERROR(ReadOutsideTable(backend, plan, &moved->table));
  const RowLayout layout = backend.configs()[static_cast<size_t>(moved->table)].Layout();
  xffi::AnyBuffer pairs = args.NextAny();
  moved->unique_rows = static_cast<const int64_t*>(pairs.untyped_data());
  moved->capacity = static_cast<int64_t>(pairs.element_count()) / 2;
  moved->count = args.NextS32(1);
  moved->rows = args.NextF32(moved->capacity * layout.dim);
  for (int v = 0; v < layout.vectors; ++v) {
    moved->vectors.push_back(args.NextF32(moved->capacity * layout.dim));
  }
  moved->scalars = layout.scalars > 0 ? args.NextS32(moved->capacity * layout.scalars) : nullptr;
  return args.status();
}

}  // namespace

Status UpdateCall(const CallFrame& frame) {
  std::shared_ptr<Backend> backend;
  DYNEMB_RETURN_IF_ERROR(Registry::Global().Find(frame.group, frame.device, &backend));
  PlanCursor plan(frame.plan);
  ArgCursor args(frame.args);
  RetCursor rets(frame.rets);
  TokenPair token{args.NextS32(1), rets.NextS32(1)};
  UpdateBatch batch{};
  batch.learning_rates = args.NextF32(static_cast<int64_t>(backend->configs().size()));
  batch.step = args.NextS32(1);
  std::vector<LookupResidual> lookups;
  DYNEMB_RETURN_IF_ERROR(ReadResiduals(*backend, plan, args, &lookups));
  batch.lookups = lookups;
  std::vector<MovedRows> moved(static_cast<size_t>(plan.Next()));
  for (MovedRows& one : moved) DYNEMB_RETURN_IF_ERROR(ReadMoved(*backend, plan, args, &one));
  batch.moved = moved;
  DYNEMB_RETURN_IF_ERROR(args.status());
  DYNEMB_RETURN_IF_ERROR(rets.status());
  if (!plan.Ok()) return InvalidArgument("update: malformed plan; reinstall dynemb_jax.");
  return backend->Update(frame.exec, token, batch);
}

}  // namespace dynemb
