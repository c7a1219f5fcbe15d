// train=False on the device.
#include <cuda_runtime.h>

#include "cuda/cuda_backend.h"
#include "cuda/find_kernels.cuh"
#include "cuda/pool_kernels.cuh"
#include "cuda/ragged_kernels.cuh"
#include "memory/cuda_check.h"

namespace dynemb {

Status CudaBackend::Find(const Executor& exec, TokenPair token, const FindBatch& batch) {
  std::lock_guard<std::mutex> lock(mutex_);
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  DYNEMB_RETURN_IF_ERROR(Poll(exec));
  RaggedCall ragged;
  std::vector<FeatureList> lists;
  for (size_t f = 0; f < batch.features.size(); ++f) {
    const FeatureInput& input = batch.features[f];
    const TableConfig& config = configs()[static_cast<size_t>(input.table)];
    if (lists.empty() || lists.back().count == kMaxFeatures) lists.emplace_back().count = 0;
    FeatureList& list = lists.back();
    list.features[list.count++] = FeatureParam{input.keys,
                                               input.lengths,
                                               input.mask,
                                               input.weights,
                                               nullptr,
                                               batch.rows[f].values,
                                               nullptr,
                                               input.NumIds(),
                                               input.NumOutputRows(),
                                               IdsOfRun(input),
                                               0,
                                               0,
                                               input.table,
                                               0,
                                               input.format,
                                               input.padding,
                                               input.combiner,
                                               false,
                                               config.row_type != RowType::kFloat32,
                                               batch.rows[f].type,
                                               BagsOfWarp(input.bag_length, config),
                                               input.row_splits.splits,
                                               input.row_splits.num_bags,
                                               ragged.Add(input, config.dim)};
  }
  DYNEMB_RETURN_IF_ERROR(ragged.Allocate(exec));
  const auto launch = [&](const FeatureList& list, const auto& rows) {
    WithCopied(list, [&]<class Elements>(uint32_t blocks, const auto& some) {
      FindKernel<Elements><<<blocks, kThreads, 0, stream>>>(some, views_, rows);
    });
    LaunchPool(list, views_, rows, stream);
  };
  if (ragged.splits.empty()) {
    for (const FeatureList& list : lists) launch(list, FindRows{states_});
    DYNEMB_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return PassToken(exec, token);
  }
  DYNEMB_RETURN_IF_ERROR(CheckSplits(exec, ragged.splits, &group_->bad_call));
  const CheckedFindRows rows{{states_}, group_};
  for (const FeatureList& list : lists) {
    launch(list, rows);
    LaunchRaggedPool(list, views_, rows, ragged.scratch, stream);
  }
  SnapshotTarget snapshot;
  DYNEMB_RETURN_IF_ERROR(snapshots_.Reserve(stream, &snapshot));
  EndFindKernel<<<1, kEndThreads, 0, stream>>>(group_, snapshot);
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return PassToken(exec, token);
}

}  // namespace dynemb
