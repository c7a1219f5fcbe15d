// train=False: rows of present keys, the missing row of others; changes nothing.
#include <mutex>

#include "cpu/cpu_backend.h"
#include "cpu/gather.h"
#include "cpu/probe_block.h"
#include "cpu/thread_pool.h"

namespace dynemb {
namespace {

// Where a piece that begins with output `first` ends: its ids lie one behind the
// other, and are about `num_ids` of them.
int64_t EndOfPiece(const FeatureInput& feature, int64_t first, int64_t end, int64_t num_ids) {
  if (feature.combiner == Combiner::kNone || feature.padding != Padding::kSplits) {
    const int64_t length =
        std::max<int64_t>(1, IdsOfOutput(feature, first).end - IdsOfOutput(feature, first).begin);
    return std::min(end, first + std::max<int64_t>(1, num_ids / length));
  }
  IdRange ids = feature.Bag(first);
  const int64_t limit = ids.begin + num_ids;
  int64_t last = first + 1;
  for (; last < end; ++last) {
    const IdRange next = feature.Bag(last);
    if (next.begin != ids.end || next.end > limit) break;
    ids.end = next.end;
  }
  return last;
}

void FindFeature(CpuTable& table, const FeatureInput& feature, const RowsOutput& out) {
  // Ids per piece: enough to fill a block, few enough to stay in cache.
  constexpr int64_t kPiece = 512;
  const bool pooled = feature.combiner != Combiner::kNone;
  const int64_t outputs = feature.NumOutputRows();
  auto find_range = [&](int64_t begin, int64_t end) {
    std::vector<int64_t> rows;
    int64_t found = 0, missing = 0, padded = 0;
    for (int64_t first = begin, last = begin; first < end; first = last) {
      last = EndOfPiece(feature, first, end, kPiece);
      const int64_t first_id = IdsOfOutput(feature, first).begin;
      const int64_t ids = IdsOfOutput(feature, last - 1).end - first_id;
      rows.resize(static_cast<size_t>(ids));
      for (int64_t i = 0; i < ids; i += kBlock) {
        int count = static_cast<int>(std::min<int64_t>(kBlock, ids - i));
        ProbeBlock(table.index(), feature, first_id + i, count, rows.data() + i);
      }
      for (int64_t i = 0; i < ids; ++i) {
        int64_t row = rows[static_cast<size_t>(i)];
        found += row >= 0;
        missing += row == kRowMissing;
        padded += row == kRowPadded;
      }
      Gather(table, feature, rows.data(), first_id, first, last, out);
    }
    table.found += found;
    table.missing += missing;
    table.padded += padded;
  };
  const int64_t ids_per_output = feature.NumIds() / std::max<int64_t>(1, outputs);
  const int64_t grain = std::max<int64_t>(1, kPiece / std::max<int64_t>(1, ids_per_output));
  ThreadPool::Shared().ParallelFor(outputs, grain * 4, find_range);
  // Padding behind the last bag of a group belongs to no output.
  if (pooled && feature.padding == Padding::kSplits) {
    for (int64_t group = 0; group < feature.row_splits.num_groups; ++group) {
      table.padded += feature.row_splits.capacity - feature.row_splits.Used(group);
    }
  }
}

}  // namespace

Status CpuBackend::Find(const Executor&, TokenPair token, const FindBatch& batch) {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  DYNEMB_RETURN_IF_ERROR(CheckFindToken(*token.in));
  for (const FeatureInput& feature : batch.features) {
    DYNEMB_RETURN_IF_ERROR(CheckBags(feature));
  }
  for (size_t f = 0; f < batch.features.size(); ++f) {
    FindFeature(table(batch.features[f].table), batch.features[f], batch.rows[f]);
  }
  *token.out = *token.in;
  return Status();
}

}  // namespace dynemb
