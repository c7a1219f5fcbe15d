// Find or insert on the device: the host's side.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>

#include "cuda/cuda_backend.h"
#include "cuda/end_call.cuh"
#include "cuda/lookup_kernels.cuh"
#include "cuda/pool_kernels.cuh"
#include "cuda/ragged_kernels.cuh"
#include "cuda/scratch.h"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

// Ids of a lookup: the slots in which absent ones meet are twice as many, in 32 bits.
constexpr int64_t kMaxIds = int64_t{1} << 30;

template <class Tables>
__global__ void __launch_bounds__(kEndThreads)
    EndLookupKernel(const __grid_constant__ Tables tables, LookupScratch scratch,
                    uint32_t* outstanding, int64_t max_outstanding, int32_t* token_out,
                    int32_t* header, SnapshotTarget snapshot) {
  GroupState& group = *scratch.group;
  const bool runs = Runs(group);
  const bool books = runs && group.may_replay == 0;
  for (int t = static_cast<int>(threadIdx.x); t < tables.count; t += kEndThreads) {
    const CallCounts counts = scratch.counts[t];
    scratch.counts[t] = CallCounts{};
    const TableView& view = scratch.tables[tables.table[t]];
    const int64_t free_rows = FreeRows(tables, scratch, t);
    const int64_t added = view.scores != nullptr
                              ? int64_t{counts.made}
                              : max(int64_t{0}, min(int64_t{counts.new_rows}, free_rows));
    header[kHeaderCounts + t] = runs ? counts.unique + static_cast<int32_t>(added) : 0;
    if (!books) continue;
    TableState& state = scratch.states[tables.table[t]];
    BookNewRows(state, counts.new_rows, free_rows);
    const int64_t all_refused = static_cast<int64_t>(counts.refused);
    const int64_t refused = all_refused - counts.not_admitted;
    const int64_t padded = static_cast<int64_t>(counts.padded);
    const int64_t ids = tables.unique_capacity[t] - padded;
    state.counters.lookups += 1;
    state.counters.ids += ids;
    state.counters.inserted += added;
    (view.evicts ? state.counters.refused_pinned : state.counters.refused_budget) += refused;
    state.counters.refused_admission += counts.not_admitted;
    state.counters.evicted += counts.evicted;
    state.counters.hits += ids - added - all_refused;
    state.counters.padded += padded;
    if (view.sketch.num_blocks == 0) continue;
    state.counted += counts.missed;
    const uint64_t num_counters = view.sketch.num_blocks * kCountersPerBlock;
    if (Halvings(state.counted, static_cast<int64_t>(num_counters)) > 0) state.counted = 0;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    if (books) {
      outstanding[group.lookups % max_outstanding] = scratch.epoch;
      group.lookups += 1;
      group.last_lookup_epoch = scratch.epoch;
    }
    header[kHeaderGeneration] = static_cast<int32_t>(group.last_lookup_epoch);
    if (!runs) {
      EndUndone(group, token_out);
    } else {
      if (books) {
        NextVersion(group);
        group.last_was_lookup = 1;
        group.last_ids_checksum = group.ids_checksum;
      }
      *token_out = group.version;
    }
    ResetCall(group);
  }
  WriteSnapshot(snapshot);
}

}  // namespace

Status CudaBackend::PrepareLookup(const Executor& exec, const LookupBatch& batch,
                                  DeviceLookup* call) {
  if (batch.tables.size() > kMaxCallTables) {
    return InvalidArgument("a lookup reads ", batch.tables.size(), " tables, at most ",
                           kMaxCallTables, " are possible on a GPU; split it.");
  }
  call->tables.count = static_cast<int>(batch.tables.size());
  call->ids_of_table.assign(batch.tables.size(), 0);
  for (size_t t = 0; t < batch.tables.size(); ++t) {
    call->tables.table[t] = batch.tables[t];
    call->tables.unique_rows[t] = batch.unique_rows[t];
    call->is_bounded |= configs()[static_cast<size_t>(batch.tables[t])].score != ScoreKind::kNone;
  }
  // Ids of a table lie side by side, in the order of the features.
  const auto position_of = [&](int table) {  // they are in ascending order
    const auto found = std::lower_bound(batch.tables.begin(), batch.tables.end(), table);
    return static_cast<size_t>(found - batch.tables.begin());
  };
  for (const FeatureInput& input : batch.features) {
    call->ids_of_table[position_of(input.table)] += input.NumIds();
  }
  std::vector<int64_t> next_id;
  for (size_t t = 0; t < batch.tables.size(); ++t) {
    next_id.push_back(call->num_ids);
    call->tables.first_id[t] = call->num_ids;
    call->tables.unique_capacity[t] = call->ids_of_table[t];
    call->num_ids += call->ids_of_table[t];
  }
  for (size_t f = 0; f < batch.features.size(); ++f) {
    const FeatureInput& input = batch.features[f];
    if (call->lists.empty() || call->lists.back().count == kMaxFeatures) {
      call->lists.emplace_back().count = 0;
      call->blocks.push_back(0);
    }
    const int32_t call_table = static_cast<int32_t>(position_of(input.table));
    const TableConfig& config = configs()[static_cast<size_t>(input.table)];
    const bool is_gated = call->lookups > 0 && config.admission.kind != AdmissionKind::kAll;
    const int64_t first_chunk = call->ragged.Add(input, config.dim);
    FeatureList& list = call->lists.back();
    list.features[list.count++] = FeatureParam{input.keys,
                                               input.lengths,
                                               input.mask,
                                               input.weights,
                                               input.scores,
                                               batch.rows[f].values,
                                               batch.index[f],
                                               input.NumIds(),
                                               input.NumOutputRows(),
                                               IdsOfRun(input),
                                               next_id[static_cast<size_t>(call_table)],
                                               call->blocks.back(),
                                               input.table,
                                               call_table,
                                               input.format,
                                               input.padding,
                                               input.combiner,
                                               is_gated,
                                               config.row_type != RowType::kFloat32,
                                               batch.rows[f].type,
                                               BagsOfWarp(input.bag_length, config),
                                               input.row_splits.splits,
                                               input.row_splits.num_bags,
                                               first_chunk};
    call->blocks.back() += Blocks(input.NumIds());
    next_id[static_cast<size_t>(call_table)] += input.NumIds();
  }
  if (call->num_ids > kMaxIds) {
    return InvalidArgument("a lookup has ", call->num_ids,
                           " ids, at most 2**30 are possible on a GPU; split it.");
  }
  uint64_t slots = 64;
  while (slots < 2 * static_cast<uint64_t>(call->num_ids)) slots *= 2;
  DYNEMB_RETURN_IF_ERROR(MakeElections(exec, slots));
  LookupScratch& s = call->scratch;
  s.group = group_;
  s.tables = views_;
  s.states = states_;
  s.counts = call_counts_;
  s.elections = reinterpret_cast<uint64_t*>(elections_.data());
  s.election_mask = static_cast<uint32_t>(slots - 1);
  const auto is_recorded = [&](int position) {
    return configs()[static_cast<size_t>(position)].recorded_evictions > 0;
  };
  const bool records =
      !batch.evicted.empty() || std::any_of(batch.tables.begin(), batch.tables.end(), is_recorded);
  const int64_t bounded_ids = call->is_bounded ? call->num_ids : 0;
  ScratchPlan plan;
  const size_t rows = plan.Add<int64_t>(call->num_ids);
  const size_t new_keys = plan.Add<Key>(call->num_ids);
  const size_t made_numbers = plan.Add<uint32_t>(bounded_ids);
  const size_t keys = plan.Add<OpenKey>(bounded_ids);
  const size_t outcomes = plan.Add<int64_t>(bounded_ids);
  const size_t slots_of_ids = plan.Add<int64_t>(bounded_ids);
  const size_t evicted = plan.Add<EvictedKey>(records ? bounded_ids : 0);
  const size_t next = plan.Add<uint32_t>(bounded_ids);
  const size_t warp_counts =
      plan.Add<uint32_t>(call->is_bounded ? int64_t{Blocks(call->num_ids)} * (kThreads / 32) : 0);
  const size_t unplaced = plan.Add<int32_t>(call->tables.count);
  const size_t left = plan.Add<uint32_t>(3);
  const size_t taken = plan.Add<uint32_t>(3);
  DYNEMB_RETURN_IF_ERROR(plan.Allocate(exec));
  s.rows = plan.At<int64_t>(rows);
  s.new_keys = plan.At<Key>(new_keys);
  s.made_numbers = plan.At<uint32_t>(made_numbers);
  BoundedScratch& b = call->bounded;
  b.keys = plan.At<OpenKey>(keys);
  b.outcomes = plan.At<int64_t>(outcomes);
  b.slots = plan.At<int64_t>(slots_of_ids);
  b.evicted = records ? plan.At<EvictedKey>(evicted) : nullptr;
  b.next = plan.At<uint32_t>(next);
  b.warp_counts = plan.At<uint32_t>(warp_counts);
  b.unplaced = plan.At<int32_t>(unplaced);
  b.left = plan.At<uint32_t>(left);
  b.taken = plan.At<uint32_t>(taken);
  return Status();
}

Status CudaBackend::MakeElections(const Executor& exec, uint64_t slots) {
  const Bytes had = elections_.committed();
  DYNEMB_RETURN_IF_ERROR(elections_.Commit(static_cast<Bytes>(slots * sizeof(uint64_t))));
  if (elections_.committed() == had) return Status();
  return CudaStatus(
      cudaMemsetAsync(elections_.data() + had, 0, static_cast<size_t>(elections_.committed() - had),
                      static_cast<cudaStream_t>(exec.stream)),
      "cudaMemsetAsync");
}

uint64_t CudaBackend::Now() {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(since_1970).count();
  return last_time_ = std::max(last_time_, static_cast<uint64_t>(now));
}

bool CudaBackend::CheckLengths(const Executor& exec, const int32_t* token,
                               const DeviceLookup& call) {
  bool checks = false;
  for (size_t l = 0; l < call.lists.size(); ++l) {
    const FeatureList& list = call.lists[l];
    const auto has_lengths = [](const FeatureParam& one) {
      return one.padding == Padding::kLengths;
    };
    if (call.blocks[l] == 0) continue;
    if (std::none_of(list.features, list.features + list.count, has_lengths)) continue;
    checks = true;
    WithFewFeatures(list, [&](const auto& some) {
      CheckLengthsKernel<<<call.blocks[l], kThreads, 0, static_cast<cudaStream_t>(exec.stream)>>>(
          some, call.scratch, token);
    });
  }
  return checks;
}

Status CudaBackend::Probe(const Executor& exec, const int32_t* token, bool touches,
                          DeviceLookup* call) {
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  call->scratch.epoch = NextEpoch(exec);
  if (call->num_ids == 0) {
    StartEmptyLookupKernel<<<1, 1, 0, stream>>>(group_, token, call->replayable);
    return CudaStatus(cudaGetLastError(), "lookup");
  }
  const bool checks = touches && call->is_bounded && CheckLengths(exec, token, *call);
  if (touches) call->time = Now();
  const bool shows_keys = call->lists.size() > 1;
  const ProbeOptions options{call->replayable, touches,       checks,
                             shows_keys,       call->lookups, call->time};
  for (size_t l = 0; l < call->lists.size(); ++l) {
    if (call->blocks[l] == 0) continue;
    WithFew(call->lists[l], call->tables, [&](const auto& list, const auto& tables) {
      ProbeKernel<<<call->blocks[l], kThreads, 0, stream>>>(list, tables, call->scratch, token,
                                                            options);
    });
  }
  return CudaStatus(cudaGetLastError(), "lookup");
}

Status CudaBackend::Insert(const Executor& exec, DeviceLookup* call) {
  if (call->num_ids == 0) return Status();
  DYNEMB_RETURN_IF_ERROR(Admit(exec, false, call));
  DYNEMB_RETURN_IF_ERROR(OrderNewKeys(exec, *call));
  if (call->is_bounded) DYNEMB_RETURN_IF_ERROR(InsertBounded(exec, call));
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  for (size_t l = 0; l < call->lists.size(); ++l) {
    const FeatureList& list = call->lists[l];
    const auto is_copied = [](const FeatureParam& one) {
      return one.combiner == Combiner::kNone && one.rows_out != nullptr;
    };
    if (call->blocks[l] == 0) continue;
    if (std::all_of(list.features, list.features + list.count, is_copied)) continue;
    WithFew(list, call->tables, [&](const auto& some, const auto& tables) {
      InsertKernel<<<call->blocks[l], kThreads, 0, stream>>>(some, tables, call->scratch);
    });
  }
  return CudaStatus(cudaGetLastError(), "insert");
}

Status CudaBackend::Lookup(const Executor& exec, TokenPair token, const LookupBatch& batch) {
  std::lock_guard<std::mutex> lock(mutex_);
  DYNEMB_RETURN_IF_ERROR(Poll(exec));
  DeviceLookup call;
  call.lookups = 1;
  const Status enqueued = EnqueueLookup(exec, token, batch, &call);
  if (!enqueued.ok()) ForgetCall(exec, call);
  return enqueued;
}

Status CudaBackend::EnqueueLookup(const Executor& exec, TokenPair token, const LookupBatch& batch,
                                  DeviceLookup* prepared) {
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  DeviceLookup& call = *prepared;
  DYNEMB_RETURN_IF_ERROR(PrepareLookup(exec, batch, &call));
  DYNEMB_RETURN_IF_ERROR(PrepareAdmission(exec, &call));
  if (!batch.evicted.empty()) DYNEMB_RETURN_IF_ERROR(MakeKeptEvicted(exec, call.num_ids));
  DYNEMB_RETURN_IF_ERROR(call.ragged.Allocate(exec));
  DYNEMB_RETURN_IF_ERROR(CheckSplits(exec, call.ragged.splits, nullptr));
  DYNEMB_RETURN_IF_ERROR(Expire(exec, token.in, call));
  DYNEMB_RETURN_IF_ERROR(MakeRoom(exec, token.in, &call));
  DYNEMB_RETURN_IF_ERROR(Probe(exec, token.in, true, &call));
  DYNEMB_RETURN_IF_ERROR(Insert(exec, &call));
  if (!batch.evicted.empty()) DYNEMB_RETURN_IF_ERROR(ReturnEvicted(exec, call, batch));
  WithFewTables(call.tables, [&]<class Tables>(const Tables& tables) {
    const TrainRows<Tables> rows{call.scratch, tables};
    // All copies before all bags: they write the new rows.
    for (const FeatureList& list : call.lists) {
      WithCopied(list, [&]<class Elements>(uint32_t blocks, const auto& some) {
        CopyKernel<Elements><<<2 * blocks, kThreads, 0, stream>>>(some, rows);
      });
    }
    for (const FeatureList& list : call.lists) {
      LaunchPool(list, views_, rows, stream);
      LaunchRaggedPool(list, views_, rows, call.ragged.scratch, stream);
    }
  });
  SnapshotTarget snapshot;
  DYNEMB_RETURN_IF_ERROR(snapshots_.Reserve(stream, &snapshot));
  WithFewTables(call.tables, [&]<class Tables>(const Tables& tables) {
    EndLookupKernel<Tables><<<1, kEndThreads, 0, stream>>>(
        tables, call.scratch, outstanding_, max_outstanding(), token.out, batch.header, snapshot);
  });
  for (size_t t = 0; t < call.ids_of_table.size(); ++t) {
    table(call.tables.table[t]).Enqueued(snapshots_.last_call(), call.tables.room[t]);
  }
  return CudaStatus(cudaGetLastError(), "lookup");
}

}  // namespace dynemb
