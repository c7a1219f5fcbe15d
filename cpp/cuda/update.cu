// Gradients and optimizer on the device: the host's side.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cub/device/device_scan.cuh>
#include <vector>

#include "cuda/cuda_backend.h"
#include "cuda/end_call.cuh"
#include "cuda/join_runs.cuh"
#include "cuda/scratch.h"
#include "cuda/step_runs.cuh"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

// How many rows each table of the update has moved.
struct UpdatedCounts {
  const int32_t* counts[kMaxCallTables];
  int32_t table[kMaxCallTables];
  int count;
};

template <class Counts>
__global__ void __launch_bounds__(kEndThreads)
    EndUpdateKernel(GroupState* group, TableState* states, const int32_t* step,
                    const __grid_constant__ Counts updated, const __grid_constant__ HeaderList list,
                    uint32_t* outstanding, int64_t max_outstanding, int32_t* token_out,
                    SnapshotTarget snapshot) {
  const bool runs = group->run != 0;
  for (int t = static_cast<int>(threadIdx.x); runs && t < updated.count; t += kEndThreads) {
    TableCounters& counters = states[updated.table[t]].counters;
    counters.updates += 1;
    counters.updated_rows += *updated.counts[t];
  }
  for (int64_t k = threadIdx.x; runs && k < max_outstanding; k += kEndThreads) {
    for (int i = 0; i < list.count; ++i) {
      const uint32_t looked = static_cast<uint32_t>(list.headers[i][kHeaderGeneration]);
      if (outstanding[k] == looked) outstanding[k] = 0;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    if (runs) {
      group->steps = (*step < 0 ? group->steps : int64_t{*step}) + 1;
      NextVersion(*group);
      *token_out = group->version;
    } else {
      EndUndone(*group, token_out);
    }
  }
  WriteSnapshot(snapshot);
}

// Gradients of one table in an update.
struct TableIds {
  int dim;
  int64_t ids = 0;

  uint32_t Runs() const { return static_cast<uint32_t>((ids + kRunLength - 1) / kRunLength); }
  uint32_t Teams() const { return 32u / static_cast<uint32_t>(LanesOfRow(dim, kRunLanes)); }
  // Wider than a warp takes at once.
  bool IsWide() const { return dim > 32 * (dim % 4 == 0 ? 4 : 1); }
};

// What the scale of a feature's bags takes.
struct BagFeature {
  int64_t num_bags;
  Combiner combiner;
};

// The tables of one kind of optimizer, with their shares of its launches.
UpdateTables OfKind(const UpdateTables& parts, const std::vector<TableIds>& ids,
                    OptimizerKind kind) {
  UpdateTables some{};
  for (int p = 0; p < parts.count; ++p) {
    if (parts.tables[p].kind != kind) continue;
    UpdateTable& part = some.tables[some.count++];
    part = parts.tables[p];
    part.first_warp = some.warps;
    part.first_run = some.runs;
    const TableIds& of = ids[static_cast<size_t>(p)];
    some.runs += of.Runs();
    some.warps += (of.Runs() + of.Teams() - 1) / of.Teams();
  }
  return some;
}

// One list of unique rows: of one table in one lookup.
struct RowList {
  const int64_t* rows;
  int64_t capacity;
  const int32_t* filled;  // in device memory
  int table;
  size_t lookup;
};

}  // namespace

Status CudaBackend::Update(const Executor& exec, TokenPair token, const UpdateBatch& batch) {
  std::lock_guard<std::mutex> lock(mutex_);
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  DYNEMB_RETURN_IF_ERROR(Poll(exec));

  size_t num_features = 0;
  for (const LookupResidual& lookup : batch.lookups) num_features += lookup.features.size();
  if (tables_.size() > kMaxCallTables) {
    return InvalidArgument("apply_gradients got a group of ", tables_.size(), " tables, at most ",
                           kMaxCallTables, " can be updated on a GPU; make several groups.");
  }
  if (batch.lookups.size() > kMaxFeatures || num_features > kMaxFeatures) {
    return InvalidArgument("apply_gradients got ", batch.lookups.size(), " lookups with ",
                           num_features, " features in all, at most ", kMaxFeatures,
                           " of either are possible in one update on a GPU; apply them in parts.");
  }
  HeaderList headers{};
  std::vector<RowList> lists;
  for (size_t l = 0; l < batch.lookups.size(); ++l) {
    const LookupResidual& lookup = batch.lookups[l];
    headers.headers[headers.count++] = lookup.header;
    for (size_t t = 0; t < lookup.tables.size(); ++t) {
      const TableConfig& of = configs()[static_cast<size_t>(lookup.tables[t])];
      if (of.on_full == OnFull::kEvict || of.ttl_clock != TtlClock::kNone) {
        if (headers.num_evicting == kMaxFeatures) {
          return InvalidArgument(
              "apply_gradients got more than ", kMaxFeatures,
              " lookups of tables that evict or have a time to live, which is not possible in one "
              "update on a GPU; apply them in parts.");
        }
        headers.evicting[headers.num_evicting] = lookup.tables[t];
        headers.header_of[headers.num_evicting++] = static_cast<int32_t>(l);
      }
      lists.push_back({lookup.unique_rows[t], lookup.unique_capacity[t],
                       lookup.header + kHeaderCounts + t, lookup.tables[t], l});
    }
  }

  // The numbering of the update: tables behind each other. A table with one list
  // keeps the numbers of its lookup.
  UpdateTables parts{};
  UpdatedCounts updated{};
  int64_t uniques = 0, max_dim = 4;
  std::vector<int64_t> first_unique(tables_.size(), -1);
  std::vector<int> list_count(tables_.size(), 0);
  std::vector<TableIds> ids_of_part;
  std::array<bool, kOptimizerKinds> used{};
  for (int t = 0; t < static_cast<int>(tables_.size()); ++t) {
    int64_t capacity = 0;
    const size_t at = static_cast<size_t>(t);
    const RowList* only = nullptr;
    for (const RowList& list : lists) {
      if (list.table != t) continue;
      capacity += list.capacity;
      only = &list;
      ++list_count[at];
    }
    const TableConfig& config = configs()[at];
    if (list_count[at] == 0 || !config.trainable) continue;
    first_unique[at] = uniques;
    ids_of_part.push_back({config.dim});
    used[static_cast<size_t>(config.optimizer.kind)] = true;
    parts.tables[parts.count++] = {only->rows, uniques, capacity, t, 0, 0, config.optimizer.kind};
    updated.counts[updated.count] = only->filled;
    updated.table[updated.count++] = t;
    uniques += capacity;
    max_dim = std::max<int64_t>(max_dim, RowLayout::Padded(config.dim));
  }

  GradientList gradients{};
  std::vector<BagFeature> bags;
  int64_t ids = 0;
  uint32_t blocks = 0;
  std::vector<size_t> lookup_of_feature;
  std::vector<int> table_of_feature;
  for (size_t l = 0; l < batch.lookups.size(); ++l) {
    for (const FeatureGradient& given : batch.lookups[l].features) {
      const size_t at = static_cast<size_t>(given.table);
      if (first_unique[at] < 0) continue;
      const bool pooled = given.combiner != Combiner::kNone;
      GradientParam& param = gradients.features[gradients.count++];
      param = {given.index,
               given.weights,
               given.grads,
               nullptr,
               nullptr,
               given.NumIds(),
               pooled ? given.bag_length : 1,
               ids,
               first_unique[at],
               0,
               blocks,
               configs()[at].dim};
      for (const RowList& list : lists) {
        if (list.table == given.table && list.lookup == l) param.unique_capacity = list.capacity;
      }
      bags.push_back({pooled ? given.num_bags : 0, given.combiner});
      lookup_of_feature.push_back(l);
      table_of_feature.push_back(given.table);
      ids += given.NumIds();
      for (int p = 0; p < parts.count; ++p) {
        if (parts.tables[p].table == given.table) {
          ids_of_part[static_cast<size_t>(p)].ids += given.NumIds();
        }
      }
      blocks += static_cast<uint32_t>((given.NumIds() + kIdsPerBlock - 1) / kIdsPerBlock);
    }
  }
  if (ids > INT32_MAX) {
    return InvalidArgument("apply_gradients got ", ids,
                           " ids, at most 2**31 - 1 are possible on a GPU; apply them in parts.");
  }

  // Scratch.
  size_t scan_bytes = 0;
  DYNEMB_CUDA_RETURN_IF_ERROR(cub::DeviceScan::ExclusiveSum(
      nullptr, scan_bytes, static_cast<uint32_t*>(nullptr), static_cast<uint32_t*>(nullptr),
      static_cast<int>(uniques + 1), stream));
  int64_t runs = 0, row_sums = 0;
  for (int p = 0; p < parts.count; ++p) {
    const TableIds& of = ids_of_part[static_cast<size_t>(p)];
    runs += of.Runs();
    DispatchRule(parts.tables[p].kind, [&]<class Rule>() {
      if (Rule::kSums > 0 && of.IsWide()) row_sums = uniques * Rule::kSums;
    });
  }
  ScratchPlan plan;
  const size_t counts = plan.Add<uint32_t>(uniques + 1);
  const size_t merged_count = plan.Add<uint32_t>(static_cast<int64_t>(tables_.size()));
  const size_t zeroed_bytes = plan.bytes();
  const size_t offsets = plan.Add<uint32_t>(uniques + 1);
  const size_t ranks = plan.Add<uint32_t>(ids);
  const size_t sorted = plan.Add<uint32_t>(ids);
  const size_t partials = plan.Add<float>(2 * runs * max_dim);
  const size_t kept_sums = plan.Add<float>(row_sums);
  const size_t scan = plan.Add<std::byte>(static_cast<int64_t>(scan_bytes));
  std::vector<size_t> scales;
  for (const BagFeature& bag : bags) scales.push_back(plan.Add<float>(bag.num_bags));
  std::vector<size_t> merged, merged_rows(tables_.size(), 0), former(tables_.size(), 0);
  for (const RowList& list : lists) {
    const bool merges = list_count[static_cast<size_t>(list.table)] > 1;
    merged.push_back(plan.Add<int32_t>(merges ? list.capacity : 0));
  }
  for (int p = 0; p < parts.count; ++p) {
    const size_t at = static_cast<size_t>(parts.tables[p].table);
    if (list_count[at] <= 1) continue;
    merged_rows[at] = plan.Add<int64_t>(parts.tables[p].capacity);
    const bool bounded = configs()[at].score != ScoreKind::kNone;
    former[at] = plan.Add<uint64_t>(bounded ? parts.tables[p].capacity : 0);
  }
  DYNEMB_RETURN_IF_ERROR(plan.Allocate(exec));

  UpdateScratch s{};
  s.group = group_;
  s.tables = views_;
  s.optimizers = optimizers_;
  s.learning_rates = batch.learning_rates;
  s.step = batch.step;
  s.counts = plan.At<uint32_t>(counts);
  s.offsets = plan.At<uint32_t>(offsets);
  s.ranks = plan.At<uint32_t>(ranks);
  s.sorted = plan.At<uint32_t>(sorted);
  s.partials = plan.At<float>(partials);
  s.row_sums = plan.At<float>(kept_sums);
  s.partial_stride = max_dim;
  s.num_uniques = uniques;

  const int64_t zeroed = static_cast<int64_t>(zeroed_bytes / sizeof(uint4));
  BeginUpdateKernel<<<std::min(Blocks(zeroed), 4 * num_sms_), kThreads, 0, stream>>>(
      group_, states_, token.in, epoch_, headers, plan.At<uint4>(counts), zeroed);

  // Several lookups of one table: number their rows together.
  for (int p = 0; p < parts.count; ++p) {
    UpdateTable& part = parts.tables[p];
    const size_t at = static_cast<size_t>(part.table);
    if (list_count[at] <= 1) continue;
    const uint32_t epoch = NextEpoch(exec);
    uint32_t* count = plan.At<uint32_t>(merged_count) + at;
    int64_t* rows = plan.At<int64_t>(merged_rows[at]);
    const bool bounded = configs()[at].score != ScoreKind::kNone;
    uint64_t* stamps = bounded ? plan.At<uint64_t>(former[at]) : nullptr;
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t i = 0; i < lists.size(); ++i) {
        const RowList& list = lists[i];
        if (list.table != part.table || list.capacity == 0) continue;
        if (pass == 0) {
          MergeKernel<<<Blocks(list.capacity), kThreads, 0, stream>>>(
              s, list.table, list.rows, list.capacity, list.filled, epoch,
              plan.At<int32_t>(merged[i]), rows, stamps, count);
        } else {
          ResolveMergedKernel<<<Blocks(list.capacity), kThreads, 0, stream>>>(
              s, list.table, list.rows, list.capacity, list.filled, plan.At<int32_t>(merged[i]));
        }
      }
    }
    if (bounded && part.capacity > 0) {
      RestoreStampsKernel<<<Blocks(part.capacity), kThreads, 0, stream>>>(
          s, part.table, rows, stamps, part.capacity, count);
    }
    part.unique_rows = rows;
    updated.counts[p] = reinterpret_cast<const int32_t*>(count);
  }
  for (int f = 0; f < gradients.count; ++f) {
    GradientParam& param = gradients.features[f];
    const size_t at = static_cast<size_t>(f);
    for (size_t i = 0; i < lists.size(); ++i) {
      // By table: one without ids has the numbers of the one behind it.
      const bool is_list =
          lists[i].lookup == lookup_of_feature[at] && lists[i].table == table_of_feature[at];
      if (is_list && list_count[static_cast<size_t>(lists[i].table)] > 1) {
        param.merged = plan.At<int32_t>(merged[i]);
      }
    }
    if (bags[at].combiner == Combiner::kNone) continue;
    param.bag_scales = plan.At<float>(scales[at]);
    if (bags[at].num_bags == 0) continue;
    BagScaleKernel<<<Blocks(bags[at].num_bags), kThreads, 0, stream>>>(
        param.index, param.weights, bags[at].num_bags, param.bag_length, bags[at].combiner,
        plan.At<float>(scales[at]));
  }

  if (blocks > 0 && uniques > 0) {
    cudaError_t scanned = cudaSuccess;
    WithFew(gradients, parts, [&](const auto& list, const auto&) {
      if (blocks <= kSmallBlocks && uniques < kSmallUniques) {
        SmallSortKernel<<<1, kSortThreads, 0, stream>>>(list, s, blocks);
        return;
      }
      RankKernel<<<blocks, kSortThreads, 0, stream>>>(list, s);
      scanned = cub::DeviceScan::ExclusiveSum(plan.At<void>(scan), scan_bytes, s.counts, s.offsets,
                                              static_cast<int>(uniques + 1), stream);
      PermuteKernel<<<blocks, kSortThreads, 0, stream>>>(list, s);
    });
    DYNEMB_CUDA_RETURN_IF_ERROR(scanned);
    for (int32_t k = 0; k < kOptimizerKinds; ++k) {
      if (!used[static_cast<size_t>(k)]) continue;
      const UpdateTables of_kind = OfKind(parts, ids_of_part, static_cast<OptimizerKind>(k));
      if (of_kind.runs == 0) continue;
      WithFew(
          gradients, of_kind,
          [&]<class List, class Tables>(const List& list, const Tables& tables) {
            DispatchRule(static_cast<OptimizerKind>(k), [&]<class Rule>() {
              StepRunsKernel<Rule, List, Tables>
                  <<<(tables.warps * 32 + kRunThreads - 1) / kRunThreads, kRunThreads, 0, stream>>>(
                      list, tables, s);
              JoinRunsKernel<Rule, List, Tables>
                  <<<(tables.runs * 32 + kJoinThreads - 1) / kJoinThreads, kJoinThreads, 0,
                     stream>>>(list, tables, s);
            });
          });
    }
  }
  SnapshotTarget snapshot;
  DYNEMB_RETURN_IF_ERROR(snapshots_.Reserve(stream, &snapshot));
  EndUpdateKernel<UpdatedCounts>
      <<<1, kEndThreads, 0, stream>>>(group_, states_, batch.step, updated, headers, outstanding_,
                                      max_outstanding(), token.out, snapshot);
  return CudaStatus(cudaGetLastError(), "update");
}

}  // namespace dynemb
