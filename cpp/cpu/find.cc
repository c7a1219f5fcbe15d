// train=False: rows of present keys, the missing row of others; changes nothing.
#include <mutex>

#include "cpu/cpu_backend.h"
#include "cpu/gather.h"
#include "cpu/probe_block.h"
#include "cpu/thread_pool.h"

namespace dynemb {
namespace {

void FindFeature(CpuTable& table, const FeatureInput& feature, float* out) {
  const bool pooled = feature.combiner != Combiner::kNone;
  const int64_t length = pooled ? feature.bag_length : 1;
  // Outputs per piece: enough ids to fill a block, few enough to stay in cache.
  const int64_t outputs = std::max<int64_t>(1, 512 / std::max<int64_t>(1, length));
  auto find_range = [&](int64_t begin, int64_t end) {
    std::vector<int64_t> rows(static_cast<size_t>(outputs * length));
    int64_t found = 0, missing = 0, padded = 0;
    for (int64_t first = begin; first < end; first += outputs) {
      int64_t last = std::min(end, first + outputs);
      int64_t first_id = first * length;
      int64_t ids = last * length - first_id;
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
  ThreadPool::Shared().ParallelFor(feature.NumOutputRows(), outputs * 4, find_range);
}

}  // namespace

Status CpuBackend::Find(const Executor&, TokenPair token, const FindBatch& batch) {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  DYNEMB_RETURN_IF_ERROR(CheckFindToken(*token.in));
  for (const FeatureInput& feature : batch.features) {
    DYNEMB_RETURN_IF_ERROR(CheckLengths(feature));
  }
  for (size_t f = 0; f < batch.features.size(); ++f) {
    FindFeature(table(batch.features[f].table), batch.features[f], batch.rows[f]);
  }
  *token.out = *token.in;
  return Status();
}

}  // namespace dynemb
