// Find or insert on the device: the host's side.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>

#include "cuda/cuda_backend.h"
#include "cuda/end_call.cuh"
#include "cuda/lookup_kernels.cuh"
#include "cuda/pool_kernels.cuh"
#include "cuda/scratch.h"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

// Ids of a lookup: the slots in which absent ones meet are twice as many, in 32 bits.
constexpr int64_t kMaxIds = int64_t{1} << 30;
// Calls that may find a table short of room before it gets head-room.
constexpr int kTightCalls = 4;
// Batches of new keys that a table with head-room takes beyond what is confirmed, so
// that as many calls may be in flight.
constexpr int kHeadRoomBatches = 4;

// With fewer calls in flight the device may come to stand while the host waits: the
// lookup and the update of one step.
constexpr int64_t kBusyCalls = 2;

// New keys of bounded tables, whose elections end with the probe; those of others have
// been counted by it.
template <class List>
__global__ void __launch_bounds__(kThreads)
    CountNewKernel(const __grid_constant__ List list, LookupScratch scratch) {
  const FeatureParam& feature = FeatureOfBlock(list);
  if (scratch.tables[feature.table].scores == nullptr || !Runs(*scratch.group)) return;
  const int64_t i = int64_t{blockIdx.x - feature.first_block} * kThreads + threadIdx.x;
  const int64_t id = feature.first_id + i;
  const int64_t code = i < feature.num_ids ? scratch.rows[id] : kRowPadded;
  const bool brings =
      IsSlot(code) && static_cast<int64_t>(scratch.elections[kSlot - code] & 0xFFFFFFFFu) == id;
  BlockTakeOfTable(brings, feature.call_table, feature.call_table, scratch.counts,
                   &CallCounts::new_rows);
}

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
    const int64_t refused = static_cast<int64_t>(counts.refused);
    const int64_t padded = static_cast<int64_t>(counts.padded);
    const int64_t ids = tables.unique_capacity[t] - padded;
    state.counters.lookups += 1;
    state.counters.ids += ids;
    state.counters.inserted += added;
    (view.evicts ? state.counters.refused_pinned : state.counters.refused_budget) += refused;
    state.counters.evicted += counts.evicted;
    state.counters.hits += ids - added - refused;
    state.counters.padded += padded;
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

// After a pass that only counted.
__global__ void ResetCallKernel(LookupScratch scratch, int num_tables) {
  for (int t = 0; t < num_tables; ++t) scratch.counts[t] = CallCounts{};
  ResetCall(*scratch.group);
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
  for (const FeatureInput& input : batch.features) {
    const auto found = std::find(batch.tables.begin(), batch.tables.end(), input.table);
    call->ids_of_table[static_cast<size_t>(found - batch.tables.begin())] += input.NumIds();
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
    const auto found = std::find(batch.tables.begin(), batch.tables.end(), input.table);
    const int32_t call_table = static_cast<int32_t>(found - batch.tables.begin());
    FeatureList& list = call->lists.back();
    list.features[list.count++] = FeatureParam{input.keys,
                                               input.lengths,
                                               input.mask,
                                               input.weights,
                                               input.scores,
                                               batch.rows[f],
                                               batch.index[f],
                                               input.NumIds(),
                                               input.NumOutputRows(),
                                               input.bag_length,
                                               next_id[static_cast<size_t>(call_table)],
                                               call->blocks.back(),
                                               input.table,
                                               call_table,
                                               input.format,
                                               input.padding,
                                               input.combiner};
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
  const bool records = std::any_of(batch.tables.begin(), batch.tables.end(), [&](int position) {
    return configs()[static_cast<size_t>(position)].recorded_evictions > 0;
  });
  const int64_t bounded_ids = call->is_bounded ? call->num_ids : 0;
  ScratchPlan plan;
  const size_t rows = plan.Add<int64_t>(call->num_ids);
  const size_t new_keys = plan.Add<Key>(call->num_ids);
  const size_t keys = plan.Add<OpenKey>(bounded_ids);
  const size_t outcomes = plan.Add<int64_t>(bounded_ids);
  const size_t slots_of_ids = plan.Add<int64_t>(bounded_ids);
  const size_t evicted = plan.Add<EvictedKey>(records ? bounded_ids : 0);
  const size_t next = plan.Add<uint32_t>(bounded_ids);
  const size_t warp_counts =
      plan.Add<uint32_t>(call->is_bounded ? int64_t{Blocks(call->num_ids)} * (kThreads / 32) : 0);
  const size_t left = plan.Add<uint32_t>(3);
  DYNEMB_RETURN_IF_ERROR(plan.Allocate(exec));
  s.rows = plan.At<int64_t>(rows);
  s.new_keys = plan.At<Key>(new_keys);
  BoundedScratch& b = call->bounded;
  b.keys = plan.At<OpenKey>(keys);
  b.outcomes = plan.At<int64_t>(outcomes);
  b.slots = plan.At<int64_t>(slots_of_ids);
  b.evicted = records ? plan.At<EvictedKey>(evicted) : nullptr;
  b.next = plan.At<uint32_t>(next);
  b.warp_counts = plan.At<uint32_t>(warp_counts);
  b.left = plan.At<uint32_t>(left);
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

Status CudaBackend::Probe(const Executor& exec, const int32_t* token, bool touches,
                          DeviceLookup* call) {
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  call->scratch.epoch = NextEpoch(exec);
  if (call->num_ids == 0) {
    StartEmptyLookupKernel<<<1, 1, 0, stream>>>(group_, token, call->replayable);
    return CudaStatus(cudaGetLastError(), "lookup");
  }
  bool checks = false;
  for (size_t l = 0; touches && call->is_bounded && l < call->lists.size(); ++l) {
    const FeatureList& list = call->lists[l];
    const auto has_lengths = [](const FeatureParam& one) {
      return one.padding == Padding::kLengths;
    };
    if (call->blocks[l] == 0) continue;
    if (std::none_of(list.features, list.features + list.count, has_lengths)) continue;
    checks = true;
    WithFewFeatures(list, [&](const auto& some) {
      CheckLengthsKernel<<<call->blocks[l], kThreads, 0, stream>>>(some, call->scratch, token);
    });
  }
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

Status CudaBackend::CountNewKeys(const Executor& exec, const int32_t* token, DeviceLookup* call,
                                 std::vector<int64_t>* new_keys) {
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  DYNEMB_RETURN_IF_ERROR(Probe(exec, token, false, call));
  for (size_t l = 0; call->is_bounded && l < call->lists.size(); ++l) {
    if (call->blocks[l] == 0) continue;
    WithFewFeatures(call->lists[l], [&](const auto& list) {
      CountNewKernel<<<call->blocks[l], kThreads, 0, stream>>>(list, call->scratch);
    });
  }
  std::vector<CallCounts> counts(static_cast<size_t>(call->tables.count));
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(counts.data(), call->scratch.counts,
                                              counts.size() * sizeof(CallCounts),
                                              cudaMemcpyDeviceToHost, stream));
  ResetCallKernel<<<1, 1, 0, stream>>>(call->scratch, call->tables.count);
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream));
  ++waits_;
  for (const CallCounts& one : counts) new_keys->push_back(one.new_rows);
  return Status();
}

Status CudaBackend::MakeRoom(const Executor& exec, const int32_t* token, DeviceLookup* call) {
  auto fits = [&](size_t t) {
    const CudaTable& one = table(call->tables.table[t]);
    return one.Bound() + call->ids_of_table[t] <= one.Capacity();
  };
  std::vector<size_t> tight;
  for (size_t t = 0; t < call->ids_of_table.size(); ++t) {
    call->tables.room[t] = call->ids_of_table[t];
    DYNEMB_RETURN_IF_ERROR(table(call->tables.table[t]).TidyIfWorn(exec.stream));
    if (fits(t)) continue;
    // At its bounds a table that need not fail takes what comes, and the device knows how
    // many free rows there are.
    if (table(call->tables.table[t]).IsAtItsBounds() &&
        table(call->tables.table[t]).config().on_full != OnFull::kError) {
      continue;
    }
    // A table that is short of room again and again gets head-room.
    CudaTable& one = table(call->tables.table[t]);
    const int64_t head_room = kHeadRoomBatches * call->ids_of_table[t];
    if (one.confirmed_size() + head_room > one.Capacity() && one.tight_calls++ >= kTightCalls) {
      const RoomPlan plan = PlanRoom(one.config(), one.room(), one.confirmed_size(), head_room);
      one.tight_calls = 0;
      if (plan.granted >= head_room) {
        const Status grown = one.Grow(exec.stream, plan.room, views_ + call->tables.table[t]);
        // Without memory for it the call goes on: it may need none.
        if (!grown.ok() && grown.code() != StatusCode::kMemory) return grown;
      }
    }
    // The oldest calls say how much of their room they did not need. While others are
    // behind them, the device has work and the host merely runs less far ahead.
    while (!fits(t) && !snapshots_.empty()) {
      if (snapshots_.outstanding() <= kBusyCalls) ++waits_;
      bool seen = false;
      DYNEMB_RETURN_IF_ERROR(PollOne(exec, true, &seen));
    }
    if (!fits(t)) tight.push_back(t);
  }
  if (tight.empty()) return Status();

  std::vector<int64_t> new_keys;
  for (size_t t : tight) {
    CudaTable& one = table(call->tables.table[t]);
    if (new_keys.empty()) {
      DYNEMB_RETURN_IF_ERROR(CountNewKeys(exec, token, call, &new_keys));
    }
    const RoomPlan plan = PlanRoom(one.config(), one.room(), one.confirmed_size(), new_keys[t]);
    if (plan.granted < new_keys[t] && one.config().on_full == OnFull::kError) {
      return FullTable(one.config(), one.room(), one.confirmed_size(), new_keys[t], plan.granted);
    }
    const Room now = one.room();
    if (plan.room.num_buckets != now.num_buckets || plan.room.row_capacity != now.row_capacity) {
      DYNEMB_RETURN_IF_ERROR(one.Grow(exec.stream, plan.room, views_ + call->tables.table[t]));
    }
  }
  return Status();
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

void CudaBackend::ForgetCall(const Executor& exec, const DeviceLookup& call) {
  if (call.scratch.counts == nullptr) return;
  ResetCallKernel<<<1, 1, 0, static_cast<cudaStream_t>(exec.stream)>>>(call.scratch,
                                                                       call.tables.count);
}

Status CudaBackend::EnqueueLookup(const Executor& exec, TokenPair token, const LookupBatch& batch,
                                  DeviceLookup* prepared) {
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  DeviceLookup& call = *prepared;
  DYNEMB_RETURN_IF_ERROR(PrepareLookup(exec, batch, &call));
  DYNEMB_RETURN_IF_ERROR(MakeRoom(exec, token.in, &call));
  DYNEMB_RETURN_IF_ERROR(Probe(exec, token.in, true, &call));
  DYNEMB_RETURN_IF_ERROR(Insert(exec, &call));
  WithFewTables(call.tables, [&]<class Tables>(const Tables& tables) {
    const TrainRows<Tables> rows{call.scratch, tables};
    // All copies before all bags: they write the new rows.
    for (const FeatureList& list : call.lists) {
      WithFeatures(list, false, [&](uint32_t blocks, const auto& some) {
        CopyKernel<<<2 * blocks, kThreads, 0, stream>>>(some, rows);
      });
    }
    for (const FeatureList& list : call.lists) LaunchPool(list, views_, rows, stream);
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
