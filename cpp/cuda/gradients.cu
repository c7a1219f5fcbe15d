// Gradients of looked-up ids, sorted by row, for an update or a collect: the host's side.
#include <cuda_runtime.h>

#include <algorithm>
#include <cub/device/device_scan.cuh>
#include <vector>

#include "cuda/bag_gradients.cuh"
#include "cuda/cuda_backend.h"
#include "cuda/fixed_order.cuh"
#include "cuda/gradient_call.h"
#include "cuda/scratch.h"
#include "cuda/sort_kernels.cuh"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

// What the scale of a feature's bags takes.
struct BagFeature {
  int64_t num_bags;
  Combiner combiner;
  RowSplits splits;  // if the bags are given by them
};

// One feature of one lookup.
struct LookupFeature {
  size_t lookup;
  const FeatureGradient* gradient;
};

// One list of unique rows: of one table in one lookup.
struct RowList {
  const int64_t* rows;
  int64_t capacity;
  const int32_t* filled;  // in device memory
  int table;
  size_t lookup;
};

}  // namespace

Status CudaBackend::SortGradients(const Executor& exec, GradientCall* prepared) {
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  GradientCall& call = *prepared;
  if (tables_.size() > kMaxCallTables) {
    return InvalidArgument("apply_gradients got a group of ", tables_.size(), " tables, at most ",
                           kMaxCallTables, " can be updated on a GPU; make several groups.");
  }
  if (call.lookups.size() > kMaxLookups) {
    return InvalidArgument("apply_gradients got ", call.lookups.size(), " lookups, at most ",
                           kMaxLookups,
                           " are possible in one update on a GPU; apply them in parts.");
  }
  HeaderList& headers = call.headers;
  std::vector<RowList> lists;
  std::vector<std::vector<size_t>> lists_of_table(tables_.size());
  for (size_t l = 0; l < call.lookups.size(); ++l) {
    const LookupResidual& lookup = call.lookups[l];
    headers.headers[headers.count++] = lookup.header;
    for (size_t t = 0; t < lookup.tables.size(); ++t) {
      const TableConfig& of = configs()[static_cast<size_t>(lookup.tables[t])];
      if (of.on_full == OnFull::kEvict || of.ttl_clock != TtlClock::kNone) {
        if (headers.num_evicting == kMaxEvicting) {
          return InvalidArgument(
              "apply_gradients got lookups that read tables which evict or have a time to live, "
              "more than ",
              kMaxEvicting,
              " of both together, which is not possible in one update on a GPU; apply them in "
              "parts.");
        }
        headers.evicting[headers.num_evicting] = lookup.tables[t];
        headers.header_of[headers.num_evicting++] = static_cast<int32_t>(l);
      }
      lists_of_table[static_cast<size_t>(lookup.tables[t])].push_back(lists.size());
      lists.push_back({lookup.unique_rows[t], lookup.unique_capacity[t],
                       lookup.header + kHeaderCounts + t, lookup.tables[t], l});
    }
  }

  // The numbering of the update: tables behind each other. A table with one list
  // keeps the numbers of its lookup.
  UpdateTables& parts = call.parts;
  int64_t uniques = 0, max_dim = 4;
  std::vector<int64_t> first_unique(tables_.size(), -1);
  std::vector<size_t> part_of_table(tables_.size(), 0);
  std::vector<TableIds>& ids_of_part = call.ids_of_part;
  for (int t = 0; t < static_cast<int>(tables_.size()); ++t) {
    int64_t capacity = 0;
    const size_t at = static_cast<size_t>(t);
    for (size_t i : lists_of_table[at]) capacity += lists[i].capacity;
    const TableConfig& config = configs()[at];
    if (lists_of_table[at].empty() || !call.wanted[at]) continue;
    const RowList& last = lists[lists_of_table[at].back()];
    first_unique[at] = uniques;
    part_of_table[at] = ids_of_part.size();
    ids_of_part.push_back({config.dim, call.rows_are_16[at] ? 8 : 4});
    parts.tables[parts.count++] = {last.rows, uniques, capacity, t, 0, 0, config.optimizer.kind};
    call.filled.push_back(last.filled);
    uniques += capacity;
    max_dim = std::max<int64_t>(max_dim, RowLayout::Padded(config.dim));
  }

  std::vector<GradientParam>& gradients = call.list;
  std::vector<BagFeature> bags;
  std::vector<RowSplits> splits;
  int64_t ids = 0;
  uint32_t blocks = 0, bag_blocks = 0;
  std::vector<LookupFeature> all_features;
  for (size_t l = 0; l < call.lookups.size(); ++l) {
    for (const FeatureGradient& given : call.lookups[l].features) {
      if (first_unique[static_cast<size_t>(given.table)] >= 0) all_features.push_back({l, &given});
    }
  }
  const bool is_fixed = configs()[0].deterministic;
  if (is_fixed) {  // ids of a table side by side
    std::ranges::stable_sort(all_features, {},
                             [](const LookupFeature& one) { return one.gradient->table; });
  }
  const auto list_of = [&](size_t lookup, int table) {
    const std::vector<size_t>& some = lists_of_table[static_cast<size_t>(table)];
    return *std::find_if(some.begin(), some.end(),
                         [&](size_t i) { return lists[i].lookup == lookup; });
  };
  std::vector<LookupFeature> features;  // one for each of `gradients`
  for (const LookupFeature& one : all_features) {
    const FeatureGradient& given = *one.gradient;
    const size_t at = static_cast<size_t>(given.table);
    const bool pooled = given.combiner != Combiner::kNone;
    const bool by_splits = pooled && given.row_splits.splits != nullptr;
    if (by_splits) splits.push_back(given.row_splits);
    if (by_splits && given.num_bags == 0) continue;  // all ids are padding
    features.push_back(one);
    GradientParam& param = gradients.emplace_back();
    param = {given.index,
             given.weights,
             given.grads.values,
             nullptr,
             nullptr,
             given.NumIds(),
             pooled ? given.bag_length : 1,
             ids,
             first_unique[at],
             0,
             blocks,
             configs()[at].dim,
             nullptr,
             pooled && !by_splits ? given.num_bags : 0,
             given.combiner,
             bag_blocks};
    bag_blocks += Blocks(param.num_bags);
    param.unique_capacity = lists[list_of(one.lookup, given.table)].capacity;
    bags.push_back(
        {pooled ? given.num_bags : 0, given.combiner, by_splits ? given.row_splits : RowSplits{}});
    ids += given.NumIds();
    TableIds& of = ids_of_part[part_of_table[at]];
    const bool are_16 = given.grads.type != RowType::kFloat32;
    if ((of.ids > 0 && of.are_16 != are_16) || (are_16 && !call.rows_are_16[at])) {
      return InvalidArgument("apply_gradients: gradients of table '", configs()[at].name,
                             "' are of several dtypes; reinstall dynemb_jax.");
    }
    of.are_16 = are_16;
    of.ids += given.NumIds();
    blocks += static_cast<uint32_t>((given.NumIds() + kIdsPerBlock - 1) / kIdsPerBlock);
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
  int64_t runs = 0, row_sums = 0, row_squares = 0;
  for (int p = 0; p < parts.count; ++p) {
    const TableIds& of = ids_of_part[static_cast<size_t>(p)];
    const size_t at = static_cast<size_t>(parts.tables[p].table);
    runs += of.Runs();
    if (!of.IsWide()) continue;
    row_sums = std::max(row_sums, uniques * call.rule_sums[at]);
    if (call.clips[at]) row_squares = uniques;
  }
  ScratchPlan plan;
  const size_t counts = plan.Add<uint32_t>(uniques + 1);
  const size_t merged_count = plan.Add<uint32_t>(static_cast<int64_t>(tables_.size()));
  const size_t zeroed_bytes = plan.bytes();
  const size_t offsets = plan.Add<uint32_t>(uniques + 1);
  const size_t ranks = plan.Add<uint32_t>(is_fixed ? 0 : ids);
  const size_t sorted = plan.Add<uint32_t>(is_fixed ? 0 : ids);
  const size_t partials = plan.Add<float>(2 * runs * max_dim);
  const size_t kept_sums = plan.Add<float>(row_sums);
  const size_t kept_squares = plan.Add<double>(row_squares);
  const size_t scan = plan.Add<std::byte>(static_cast<int64_t>(scan_bytes));
  const auto is_special = [&](const UpdateTable& part) { return call.IsSpecial(part); };
  const bool are_many = gradients.size() > kFewFeatures || parts.count > kFewTables ||
                        std::any_of(parts.tables, parts.tables + parts.count, is_special);
  const int64_t num_listed = are_many ? std::ssize(gradients) : 0;
  const size_t on_device = plan.Add<GradientParam>(num_listed);
  FixedOrder order;
  const size_t reordered = plan.Add<GradientParam>(is_fixed ? num_listed : 0);
  if (is_fixed) DYNEMB_RETURN_IF_ERROR(order.Plan(parts, ids, uniques, blocks, &plan));
  std::vector<size_t> scales, bags_of;
  for (const BagFeature& bag : bags) {
    scales.push_back(plan.Add<float>(bag.num_bags));
    bags_of.push_back(plan.Add<uint32_t>(bag.splits.NumIds()));
  }
  std::vector<size_t> merged, merged_rows(tables_.size(), 0), former(tables_.size(), 0);
  for (const RowList& list : lists) {
    const bool merges = lists_of_table[static_cast<size_t>(list.table)].size() > 1;
    merged.push_back(plan.Add<int32_t>(merges ? list.capacity : 0));
  }
  for (int p = 0; p < parts.count; ++p) {
    const size_t at = static_cast<size_t>(parts.tables[p].table);
    if (lists_of_table[at].size() <= 1) continue;
    merged_rows[at] = plan.Add<int64_t>(parts.tables[p].capacity);
    const bool bounded = configs()[at].score != ScoreKind::kNone;
    former[at] = plan.Add<uint64_t>(bounded ? parts.tables[p].capacity : 0);
  }
  DYNEMB_RETURN_IF_ERROR(plan.Allocate(exec));

  UpdateScratch& s = call.scratch;
  s.group = group_;
  s.tables = views_;
  s.optimizers = optimizers_;
  s.counts = plan.At<uint32_t>(counts);
  s.offsets = plan.At<uint32_t>(offsets);
  s.ranks = plan.At<uint32_t>(ranks);
  s.sorted = plan.At<uint32_t>(sorted);
  s.partials = plan.At<float>(partials);
  s.row_sums = plan.At<float>(kept_sums);
  s.row_squares = plan.At<double>(kept_squares);
  s.partial_stride = max_dim;
  s.num_uniques = uniques;

  DYNEMB_RETURN_IF_ERROR(CheckSplits(exec, splits, nullptr));
  const int64_t zeroed = static_cast<int64_t>(zeroed_bytes / sizeof(uint4));
  BeginUpdateKernel<<<std::min(Blocks(zeroed), 4 * num_sms_), kThreads, 0, stream>>>(
      group_, states_, call.token, epoch_, headers, plan.At<uint4>(counts), zeroed);

  // Several lookups of one table: number their rows together.
  for (int p = 0; p < parts.count; ++p) {
    UpdateTable& part = parts.tables[p];
    const size_t at = static_cast<size_t>(part.table);
    if (lists_of_table[at].size() <= 1) continue;
    const uint32_t epoch = NextEpoch(exec);
    uint32_t* count = plan.At<uint32_t>(merged_count) + at;
    int64_t* rows = plan.At<int64_t>(merged_rows[at]);
    const bool bounded = configs()[at].score != ScoreKind::kNone;
    uint64_t* stamps = bounded ? plan.At<uint64_t>(former[at]) : nullptr;
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t i : lists_of_table[at]) {
        const RowList& list = lists[i];
        if (list.capacity == 0) continue;
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
    call.filled[static_cast<size_t>(p)] = reinterpret_cast<const int32_t*>(count);
  }
  for (size_t at = 0; at < gradients.size(); ++at) {
    GradientParam& param = gradients[at];
    const LookupFeature& of = features[at];
    if (lists_of_table[static_cast<size_t>(of.gradient->table)].size() > 1) {
      param.merged = plan.At<int32_t>(merged[list_of(of.lookup, of.gradient->table)]);
    }
    if (bags[at].combiner == Combiner::kNone) continue;
    param.bag_scales = plan.At<float>(scales[at]);
    const RowSplits& by = bags[at].splits;
    if (by.splits == nullptr || bags[at].num_bags == 0) continue;
    param.bag_of = plan.At<uint32_t>(bags_of[at]);
    if (by.NumIds() == 0) continue;
    RaggedScaleKernel<<<Blocks(32 * bags[at].num_bags), kThreads, 0, stream>>>(
        group_, by, param.weights, bags[at].combiner, plan.At<float>(scales[at]));
    BagOfKernel<<<Blocks(by.NumIds()), kThreads, 0, stream>>>(group_, by,
                                                              plan.At<uint32_t>(bags_of[at]));
  }

  const auto put_list = [&](size_t place) {
    call.list_on_device = plan.At<GradientParam>(place);
    for (size_t first = 0; first < gradients.size(); first += kPutFeatures) {
      GradientListOf<kPutFeatures> some{};
      const size_t end = std::min(gradients.size(), first + kPutFeatures);
      some.count = static_cast<int>(end - first);
      std::copy(gradients.data() + first, gradients.data() + end, some.features);
      PutFeaturesKernel<<<1, kPutFeatures, 0, stream>>>(some, call.list_on_device + first);
    }
  };
  if (are_many) put_list(on_device);
  if (bag_blocks > 0) {
    WithFew(gradients, call.list_on_device, parts, [&](const auto& list, const auto&) {
      BagScalesKernel<<<bag_blocks, kThreads, 0, stream>>>(list);
    });
  }

  call.has_gradients = blocks > 0 && uniques > 0;
  if (call.has_gradients && is_fixed) {
    DYNEMB_RETURN_IF_ERROR(order.Enqueue(plan, stream, &call));
    if (are_many) put_list(reordered);
  } else if (call.has_gradients) {
    cudaError_t scanned = cudaSuccess;
    WithFew(gradients, call.list_on_device, parts, [&](const auto& list, const auto&) {
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
  }
  return CudaStatus(cudaGetLastError(), "gradients");
}

}  // namespace dynemb
