// operands: token, lookups (see ReadResiduals)
// results:  token, then per collected table: unique_rows, count, grads, rows, state
//           vectors, and scalars where there are any
// plan:     [lookups' ..., collected tables, table ...]
#include "ffi/calls.h"
#include "ffi/residuals.h"
#include "table/registry.h"

namespace dynemb {
namespace {

// As many rows as the table's lookups have room for.
int64_t CapacityOf(std::span<const LookupResidual> lookups, int table) {
  int64_t capacity = 0;
  for (const LookupResidual& lookup : lookups) {
    for (size_t t = 0; t < lookup.tables.size(); ++t) {
      if (lookup.tables[t] == table) capacity += lookup.unique_capacity[t];
    }
  }
  return capacity;
}

}  // namespace

Status CollectCall(const CallFrame& frame) {
  std::shared_ptr<Backend> backend;
  DYNEMB_RETURN_IF_ERROR(Registry::Global().Find(frame.group, frame.device, &backend));
  PlanCursor plan(frame.plan);
  ArgCursor args(frame.args);
  RetCursor rets(frame.rets);
  TokenPair token{args.NextS32(1), rets.NextS32(1)};
  std::vector<LookupResidual> lookups;
  DYNEMB_RETURN_IF_ERROR(ReadResiduals(*backend, plan, args, &lookups));
  std::vector<CollectedRows> tables(static_cast<size_t>(plan.Next()));
  for (CollectedRows& one : tables) {
    DYNEMB_RETURN_IF_ERROR(ReadOutsideTable(*backend, plan, &one.table));
    const RowLayout layout = backend->configs()[static_cast<size_t>(one.table)].Layout();
    one.capacity = CapacityOf(lookups, one.table);
    one.unique_rows = reinterpret_cast<int64_t*>(rets.NextPairs(one.capacity));
    one.count = rets.NextS32(1);
    one.grads = rets.NextF32(one.capacity * layout.dim);
    one.rows = rets.NextF32(one.capacity * layout.dim);
    for (int v = 0; v < layout.vectors; ++v) {
      one.vectors.push_back(rets.NextF32(one.capacity * layout.dim));
    }
    one.scalars = layout.scalars > 0 ? rets.NextS32(one.capacity * layout.scalars) : nullptr;
  }
  DYNEMB_RETURN_IF_ERROR(args.status());
  DYNEMB_RETURN_IF_ERROR(rets.status());
  if (!plan.Ok()) return InvalidArgument("collect: malformed plan; reinstall dynemb_jax.");
  return backend->Collect(frame.exec, token, CollectBatch{lookups, tables});
}

}  // namespace dynemb
