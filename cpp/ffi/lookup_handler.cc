// operands: token, features (see ReadFeatures)
// results:  token, header, per feature rows and index, per table unique_rows, per table
//           that is asked for its evicted keys these keys, their scores, their number
// plan:     [features, features' fields ..., tables, table ..., asked tables, table ...]
#include "ffi/calls.h"
#include "table/registry.h"

namespace dynemb {
namespace {

int64_t NumIdsOf(std::span<const FeatureInput> features, int table) {
  int64_t ids = 0;
  for (const FeatureInput& feature : features) {
    if (feature.table == table) ids += feature.NumIds();
  }
  return ids;
}

}  // namespace

Status LookupCall(const CallFrame& frame) {
  std::shared_ptr<Backend> backend;
  DYNEMB_RETURN_IF_ERROR(Registry::Global().Find(frame.group, frame.device, &backend));
  PlanCursor plan(frame.plan);
  ArgCursor args(frame.args);
  RetCursor rets(frame.rets);
  TokenPair token{args.NextS32(1), rets.NextS32(1)};

  std::vector<FeatureInput> features;
  DYNEMB_RETURN_IF_ERROR(ReadFeatures(*backend, plan.Next(), plan, args, &features));
  std::vector<int> tables(static_cast<size_t>(plan.Next()));
  for (int& table : tables) table = static_cast<int>(plan.Next());
  std::vector<EvictedOutput> evicted(static_cast<size_t>(plan.Next()));
  for (EvictedOutput& output : evicted) output.table = static_cast<int>(plan.Next());

  int32_t* header = rets.NextS32(kHeaderCounts + static_cast<int64_t>(tables.size()));
  std::vector<RowsOutput> rows;
  std::vector<int32_t*> index;
  for (const FeatureInput& feature : features) {
    const TableConfig& config = backend->configs()[static_cast<size_t>(feature.table)];
    rows.push_back(rets.NextRows(feature.NumOutputRows() * config.dim, config.row_type));
    index.push_back(rets.NextS32(feature.NumIds()));
  }
  std::vector<int64_t*> unique_rows;
  for (int table : tables) {
    unique_rows.push_back(reinterpret_cast<int64_t*>(rets.NextPairs(NumIdsOf(features, table))));
  }
  for (EvictedOutput& output : evicted) {
    output.capacity = NumIdsOf(features, output.table);
    output.keys = rets.NextPairs(output.capacity);
    output.scores = rets.NextPairs(output.capacity);
    output.count = rets.NextS32(1);
  }
  DYNEMB_RETURN_IF_ERROR(args.status());
  DYNEMB_RETURN_IF_ERROR(rets.status());
  if (!plan.Ok()) return InvalidArgument("lookup: malformed plan; reinstall dynemb_jax.");
  return backend->Lookup(frame.exec, token,
                         LookupBatch{features, rows, index, tables, unique_rows, header, evicted});
}

}  // namespace dynemb
