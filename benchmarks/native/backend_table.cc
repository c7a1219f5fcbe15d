#include "backend_table.h"

#include <cmath>

#include "cuda/cuda_backend.h"

namespace dynemb::bench {
namespace {

FeatureInput Feature(const Key* keys, int64_t num_ids) {
  FeatureInput feature{};
  feature.combiner = Combiner::kNone;
  feature.format = KeyFormat::kBits64;
  feature.padding = Padding::kNone;
  feature.num_bags = num_ids;
  feature.bag_length = 1;
  feature.keys = keys;
  return feature;
}

}  // namespace

TableConfig Config(int dim, int64_t initial_rows, double max_load) {
  TableConfig config;
  config.name = "bench";
  config.dim = dim;
  const float width = 1.0f / std::sqrt(static_cast<float>(dim));
  config.initializer = {InitializerKind::kUniform, width, RowInitStream(0, config.name)};
  config.max_load = max_load;
  config.initial_rows = initial_rows;
  return config;
}

BackendTable::BackendTable(Device& device, const TableConfig& config, int64_t max_ids)
    : device_(device),
      rows_(max_ids * config.dim),
      index_(max_ids),
      unique_rows_(max_ids),
      header_(kHeaderCounts + 1),
      tokens_(2),
      count_(1) {
  const int32_t version = 1;
  Check(CudaBackend::Create({config}, version, &backend_));
  Check(cudaMemcpy(tokens_.data(), &version, sizeof version, cudaMemcpyHostToDevice), "cudaMemcpy");
}

TokenPair BackendTable::NextToken() {
  const int32_t* in = tokens_.data() + token_;
  token_ = 1 - token_;
  return {in, tokens_.data() + token_};
}

void BackendTable::Lookup(const Key* keys, int64_t num_ids) {
  const FeatureInput feature = Feature(keys, num_ids);
  const RowsOutput rows{rows_.data(), RowType::kFloat32};
  int32_t* const index = index_.data();
  int64_t* const unique_rows = unique_rows_.data();
  const int table = 0;
  LookupBatch batch{};
  batch.features = {&feature, 1};
  batch.rows = {&rows, 1};
  batch.index = {&index, 1};
  batch.tables = {&table, 1};
  batch.unique_rows = {&unique_rows, 1};
  batch.header = header_.data();
  Check(backend_->Lookup(device_.executor(), NextToken(), batch));
}

void BackendTable::Find(const Key* keys, int64_t num_ids) {
  const FeatureInput feature = Feature(keys, num_ids);
  const RowsOutput rows{rows_.data(), RowType::kFloat32};
  int32_t* const token = tokens_.data() + token_;
  FindBatch batch{};
  batch.features = {&feature, 1};
  batch.rows = {&rows, 1};
  Check(backend_->Find(device_.executor(), {token, token}, batch));
}

void BackendTable::Erase(const Key* keys, int64_t num_keys) {
  const int32_t count = static_cast<int32_t>(num_keys);
  Check(cudaMemcpyAsync(count_.data(), &count, sizeof count, cudaMemcpyHostToDevice,
                        device_.stream()),
        "cudaMemcpyAsync");
  KeyBatch batch{};
  batch.keys = keys;
  batch.count = count_.data();
  batch.capacity = num_keys;
  Check(backend_->Erase(device_.executor(), NextToken(), batch));
}

TableStats BackendTable::Stats() {
  std::vector<TableStats> stats;
  Check(backend_->Stats(&stats));
  return stats.front();
}

}  // namespace dynemb::bench
