// Find or insert on the device: the host's side.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>

#include "cuda/cuda_backend.h"
#include "cuda/end_call.cuh"
#include "cuda/insert_kernels.cuh"
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

std::atomic<bool> cooperative_allowed{true};

__global__ void __launch_bounds__(kThreads) CountElectedKernel(LookupScratch scratch) {
  if (!HasMisses(scratch)) return;  // of a call that will not run, nobody was elected
  const uint32_t count = *scratch.miss_count;
  for (uint32_t base = blockIdx.x * kThreads; base < count; base += gridDim.x * kThreads) {
    const uint32_t m = base + threadIdx.x;
    const bool elected = m < count && scratch.misses[m].winner == static_cast<int32_t>(m);
    BlockTakeOfTable(elected, m < count ? scratch.misses[m].call_table : 0,
                     scratch.misses[base].call_table, scratch.counts);
  }
}

template <class Tables>
__global__ void __launch_bounds__(kEndThreads)
    EndLookupKernel(const __grid_constant__ Tables tables, LookupScratch scratch,
                    int32_t* token_out, int32_t* header, SnapshotTarget snapshot) {
  GroupState& group = *scratch.group;
  const bool runs = Runs(group);
  const bool books = runs && group.may_replay == 0;
  for (int t = static_cast<int>(threadIdx.x); t < tables.count; t += kEndThreads) {
    const CallCounts counts = scratch.counts[t];
    scratch.counts[t] = CallCounts{};
    const int64_t inserted = min(int64_t{counts.new_rows}, tables.room[t]);
    header[kHeaderCounts + t] = runs ? counts.unique + static_cast<int32_t>(inserted) : 0;
    if (!books) continue;
    TableState& state = scratch.states[tables.table[t]];
    const int64_t added = BookNewRows(state, counts.new_rows, tables.room[t]);
    const int64_t refused = static_cast<int64_t>(counts.refused);
    const int64_t padded = static_cast<int64_t>(counts.padded);
    const int64_t ids = tables.unique_capacity[t] - padded;
    state.counters.lookups += 1;
    state.counters.ids += ids;
    state.counters.inserted += added;
    state.counters.refused_budget += refused;
    state.counters.hits += ids - added - refused;
    state.counters.padded += padded;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    header[kHeaderGeneration] = group.generation;
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
    ResetCall(group, scratch.miss_count);
  }
  WriteSnapshot(snapshot);
}

// After a pass that only counted.
__global__ void ResetCallKernel(LookupScratch scratch, int num_tables) {
  for (int t = 0; t < num_tables; ++t) scratch.counts[t] = CallCounts{};
  ResetCall(*scratch.group, scratch.miss_count);
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
    list.features[list.count++] =
        FeatureParam{input.keys,       input.lengths,  input.mask,          input.weights,
                     batch.rows[f],    batch.index[f], input.NumIds(),      input.NumOutputRows(),
                     input.bag_length, call->num_ids,  call->blocks.back(), input.table,
                     call_table,       input.format,   input.padding,       input.combiner};
    call->blocks.back() += Blocks(input.NumIds());
    call->num_ids += input.NumIds();
    call->ids_of_table[static_cast<size_t>(call_table)] += input.NumIds();
  }
  if (call->num_ids > kMaxIds) {
    return InvalidArgument("a lookup has ", call->num_ids,
                           " ids, at most 2**30 are possible on a GPU; split it.");
  }
  for (size_t t = 0; t < batch.tables.size(); ++t) {
    call->tables.unique_capacity[t] = call->ids_of_table[t];
  }

  uint32_t slots = 64;
  while (slots < 2 * static_cast<uint64_t>(call->num_ids)) slots *= 2;
  LookupScratch& s = call->scratch;
  s.group = group_;
  s.tables = views_;
  s.states = states_;
  s.miss_mask = slots - 1;
  ScratchPlan plan;
  const size_t miss_slots = plan.Add<int32_t>(slots);
  const size_t rows = plan.Add<int64_t>(call->num_ids);
  const size_t misses = plan.Add<Miss>(call->num_ids);
  DYNEMB_RETURN_IF_ERROR(plan.Allocate(exec));
  s.counts = call_counts_;
  s.miss_count = miss_count_;
  s.rows = plan.At<int64_t>(rows);
  s.misses = plan.At<Miss>(misses);
  s.miss_slots = plan.At<int32_t>(miss_slots);
  return Status();
}

Status CudaBackend::Probe(const Executor& exec, const int32_t* token, bool copies,
                          DeviceLookup* call) {
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  call->scratch.epoch = NextEpoch(exec);
  if (call->num_ids == 0) {
    StartEmptyLookupKernel<<<1, 1, 0, stream>>>(group_, token, call->replayable);
    return CudaStatus(cudaGetLastError(), "lookup");
  }
  bool is_first = true;
  for (size_t l = 0; l < call->lists.size(); ++l) {
    if (call->blocks[l] == 0) continue;
    const ProbeOptions options{call->replayable, is_first, copies};
    WithFew(call->lists[l], call->tables, [&](const auto& list, const auto& tables) {
      ProbeKernel<<<call->blocks[l], kThreads, 0, stream>>>(list, tables, call->scratch, token,
                                                            options);
    });
    is_first = false;
  }
  return CudaStatus(cudaGetLastError(), "lookup");
}

unsigned CudaBackend::MissBlocks(const DeviceLookup& call) const {
  return std::min(Blocks(call.num_ids), kMissBlocksPerSm * num_sms_);
}

Status CudaBackend::ElectAndInsert(const Executor& exec, DeviceLookup* call) {
  if (call->num_ids == 0) return Status();
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  const unsigned blocks = MissBlocks(*call);
  cudaError_t launched = cudaSuccess;
  WithFewTables(call->tables, [&](const auto& tables) {
    if (cooperative_ && cooperative_allowed.load(std::memory_order_relaxed)) {
      cudaLaunchAttribute together{};
      together.id = cudaLaunchAttributeCooperative;
      together.val.cooperative = 1;
      cudaLaunchConfig_t config{};
      config.gridDim = blocks;
      config.blockDim = kThreads;
      config.stream = stream;
      config.attrs = &together;
      config.numAttrs = 1;
      launched =
          cudaLaunchKernelEx(&config, ElectAndInsertKernel<std::remove_cvref_t<decltype(tables)>>,
                             tables, call->scratch);
    } else {
      ElectKernel<<<blocks, kThreads, 0, stream>>>(call->scratch);
      InsertKernel<<<blocks, kThreads, 0, stream>>>(tables, call->scratch);
    }
  });
  DYNEMB_CUDA_RETURN_IF_ERROR(launched);
  return CudaStatus(cudaGetLastError(), "insert");
}

void CudaBackend::AllowCooperativeLaunch(bool allowed) { cooperative_allowed = allowed; }

Status CudaBackend::CountNewKeys(const Executor& exec, const int32_t* token, DeviceLookup* call,
                                 std::vector<int64_t>* new_keys) {
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  DYNEMB_RETURN_IF_ERROR(Probe(exec, token, false, call));
  const unsigned blocks = std::max(1u, MissBlocks(*call));
  ElectKernel<<<blocks, kThreads, 0, stream>>>(call->scratch);
  CountElectedKernel<<<blocks, kThreads, 0, stream>>>(call->scratch);
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
      return TableFull("table '", one.config().name, "' is full: it holds ", one.confirmed_size(),
                       " rows in ", RoomBytes(one.config(), one.room()), " bytes, ", new_keys[t],
                       " new keys came and ", plan.granted,
                       " of them fit into max_bytes=", one.config().max_bytes,
                       "; raise max_bytes, erase keys, or set on_full=\"drop\".");
    }
    call->tables.room[t] = plan.granted;
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
  DYNEMB_RETURN_IF_ERROR(ElectAndInsert(exec, &call));
  // All copies before all bags: they write the new rows.
  for (const FeatureList& list : call.lists) {
    WithFeatures(list, GatherKind::kCopied, [&](uint32_t blocks, const auto& some) {
      CopyKernel<<<blocks, kThreads, 0, stream>>>(some, TrainRows{call.scratch});
    });
  }
  for (const FeatureList& list : call.lists) {
    LaunchPool(list, views_, TrainRows{call.scratch}, stream);
  }
  SnapshotTarget snapshot;
  DYNEMB_RETURN_IF_ERROR(snapshots_.Reserve(stream, &snapshot));
  WithFewTables(call.tables, [&]<class Tables>(const Tables& tables) {
    EndLookupKernel<Tables>
        <<<1, kEndThreads, 0, stream>>>(tables, call.scratch, token.out, batch.header, snapshot);
  });
  for (size_t t = 0; t < call.ids_of_table.size(); ++t) {
    table(call.tables.table[t]).Enqueued(snapshots_.last_call(), call.tables.room[t]);
  }
  return CudaStatus(cudaGetLastError(), "lookup");
}

}  // namespace dynemb
