// Rows that nobody has touched for longer than they may live: before a lookup, once an
// eighth of that time (docs/decisions/0009). And the touches themselves.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/bounded_call.cuh"
#include "cuda/cuda_backend.h"
#include "cuda/launch_together.cuh"
#include "cuda/scratch.h"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

constexpr int kDigits = 8, kDigitValues = 256;  // of a hash, the highest digit first
static_assert(kDigitValues == kThreads);

struct MortalTables {
  int32_t table[kMaxCallTables];  // position in the group
  int count;
};

struct ExpireScratch {
  uint32_t* block_counts;  // [blocks]
  uint32_t* histograms;    // [kDigits][kDigitValues]
  uint32_t* recorded;      // [1]
};

// What a sweep of one table goes by.
struct Sweep {
  uint64_t now;
  uint32_t oldest_pinned;
};

// Calls body(bucket) for each bucket of this warp, with all lanes.
template <class Body>
__device__ void ForBuckets(const TableView& view, const Body& body) {
  const uint64_t warps = uint64_t{gridDim.x} * (kThreads / 32);
  uint64_t bucket = uint64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  for (; bucket < view.index.num_buckets; bucket += warps) body(bucket);
}

// The keys of a bucket that go: bit s is slot s.
__device__ uint32_t GoersOf(const TableView& view, const Sweep& sweep, uint64_t bucket) {
  const SlotRef at{BucketIndex{bucket}, Lane()};
  bool goes = false;
  if (at.slot < kSlotsPerBucket && view.index.Sector(at.bucket).tags[at.slot] != 0) {
    const int64_t row = static_cast<int64_t>(view.index.EntryAt(at).Row());
    const uint64_t touched =
        view.touches != nullptr
            ? view.touches[row]
            : view.scores[bucket * kScoresPerBucket + static_cast<uint64_t>(at.slot)];
    goes = touched + view.ttl < sweep.now &&
           static_cast<uint32_t>(view.stamps[row] >> 32) < sweep.oldest_pinned;
  }
  return __ballot_sync(kFullWarp, goes);
}

// Of the hashes of all keys that go, the one before which `nth` others lie. All blocks.
template <bool kTogether>
__device__ uint64_t NthHash(const TableView& view, const ExpireScratch& scratch, uint32_t nth) {
  __shared__ uint32_t histogram[kDigitValues];
  __shared__ uint32_t digit, before_digit;
  uint64_t prefix = 0;
  for (int d = 0; d < kDigits; ++d) {
    const int shift = 64 - 8 * (d + 1);
    histogram[threadIdx.x] = 0;
    __syncthreads();
    ForBuckets(view, [&](uint64_t bucket) {
      if ((view.heads[bucket] >> Lane() & 1u) == 0) return;
      const uint64_t hash = HashKey(view.index.EntryAt({BucketIndex{bucket}, Lane()}).key).bits;
      if (hash >> shift >> 8 != prefix) return;
      atomicAdd(&histogram[hash >> shift & 0xFFu], 1u);
    });
    __syncthreads();
    uint32_t* shared_by_all = scratch.histograms + d * kDigitValues + threadIdx.x;
    if (histogram[threadIdx.x] != 0) atomicAdd(shared_by_all, histogram[threadIdx.x]);
    SyncGrid<kTogether>();
    histogram[threadIdx.x] = __ldcg(shared_by_all);
    __syncthreads();
    if (threadIdx.x == 0) {
      before_digit = 0;
      for (digit = 0; before_digit + histogram[digit] <= nth; ++digit) {
        before_digit += histogram[digit];
      }
    }
    __syncthreads();
    prefix = prefix << 8 | digit;
    nth -= before_digit;
    __syncthreads();
  }
  return prefix;
}

// One table is looked through, by all blocks. Meanwhile which keys of a bucket go lies where
// the heads of new keys' lists do, which is zero between calls.
template <bool kTogether>
__device__ void SweepTable(const TableView& view, TableState& state, const Sweep& sweep,
                           const ExpireScratch& scratch) {
  __shared__ uint32_t of_block, ahead_of_block, total;
  if (threadIdx.x == 0) of_block = ahead_of_block = total = 0;
  __syncthreads();
  uint32_t mine = 0;
  ForBuckets(view, [&](uint64_t bucket) {
    const uint32_t goers = GoersOf(view, sweep, bucket);
    if (goers != 0 && Lane() == 0) view.heads[bucket] = goers;
    mine += static_cast<uint32_t>(__popc(goers));
  });
  if (Lane() == 0) atomicAdd(&of_block, mine);
  if (blockIdx.x == 0) {
    for (int d = 0; d < kDigits; ++d) scratch.histograms[d * kDigitValues + threadIdx.x] = 0;
    if (threadIdx.x == 0) *scratch.recorded = 0;
  }
  __syncthreads();
  if (threadIdx.x == 0) scratch.block_counts[blockIdx.x] = of_block;
  SyncGrid<kTogether>();
  for (uint32_t b = threadIdx.x; b < gridDim.x; b += kThreads) {
    const uint32_t count = __ldcg(scratch.block_counts + b);
    atomicAdd(&total, count);
    if (b < blockIdx.x) atomicAdd(&ahead_of_block, count);
  }
  __syncthreads();
  const uint32_t goers = total;
  const int64_t room = view.record_limit - state.recorded;
  // Those of the smallest hashes are put on record; the host sorts them.
  uint64_t first_lost = kMaxScore;
  const bool loses = room < int64_t{goers};
  if (loses && room > 0) {
    first_lost = NthHash<kTogether>(view, scratch, static_cast<uint32_t>(room));
  }
  if (goers != 0) {
    uint32_t latest = 0;
    ForBuckets(view, [&](uint64_t bucket) {
      const uint32_t mask = view.heads[bucket];
      if (mask == 0) return;
      const bool goes = (mask >> Lane() & 1u) != 0;
      const SlotRef at{BucketIndex{bucket}, Lane()};
      const Entry entry = goes ? view.index.EntryAt(at) : Entry{};
      const bool is_kept = goes && room > 0 && (!loses || HashKey(entry.key).bits < first_lost);
      const uint32_t place = WarpAllocate(goes, &ahead_of_block);
      const uint32_t record = WarpAllocate(is_kept, scratch.recorded);
      if (goes) {
        const int64_t row = static_cast<int64_t>(entry.Row());
        view.free_rows[state.free_count + place] = row;
        view.index.Sector(at.bucket).tags[at.slot] = 0;
        latest = max(latest, static_cast<uint32_t>(view.stamps[row] >> 32));
      }
      if (is_kept) {
        const int64_t to = state.recorded + record;
        view.recorded[to] = {
            entry.key, view.scores[bucket * kScoresPerBucket + static_cast<uint64_t>(at.slot)]};
        view.sweeps[to] = state.counters.expired + 1;
      }
      __syncwarp();
      if (Lane() == 0) view.heads[bucket] = 0;
    });
    if (latest > __ldcg(&state.last_evicted_epoch)) atomicMax(&state.last_evicted_epoch, latest);
  }
  // What the host and the next table's sweep find is written once nobody reads it any more.
  SyncGrid<kTogether>();
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  const int64_t recorded = max(int64_t{0}, min(room, int64_t{goers}));
  state.recorded += recorded;
  if (view.record_limit > 0) state.record_lost += goers - recorded;
  state.size -= goers;
  state.free_count += goers;
  state.counters.expired += goers;
  state.last_expiry = sweep.now;
}

// Before a lookup that is not yet known to be done: one with this token is, unless its
// lengths are wrong.
template <bool kTogether>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    ExpireKernel(const __grid_constant__ MortalTables mortal, const GroupState* group,
                 const TableView* views, TableState* states, const int32_t* token,
                 const uint32_t* outstanding, int64_t max_outstanding, uint64_t time,
                 ExpireScratch scratch) {
  if (group->error != DeviceError::kNone || group->bad_call != 0) return;
  if (*token != group->version) return;
  __shared__ uint32_t oldest_pinned;
  if (threadIdx.x == 0) oldest_pinned = 0xFFFFFFFF;
  __syncthreads();
  for (int64_t k = threadIdx.x; k < max_outstanding; k += kThreads) {
    if (outstanding[k] != 0) atomicMin(&oldest_pinned, outstanding[k]);
  }
  __syncthreads();
  for (int m = 0; m < mortal.count; ++m) {
    const TableView& view = views[mortal.table[m]];
    TableState& state = states[mortal.table[m]];
    const bool by_lookups = view.ttl_clock == TtlClock::kLookups;
    // The lookup that is about to come is one more.
    const uint64_t now = by_lookups ? static_cast<uint64_t>(state.counters.lookups) + 1 : time;
    if (now - state.last_expiry < max(view.ttl / 8, uint64_t{1})) continue;
    SweepTable<kTogether>(view, state, {now, oldest_pinned}, scratch);
  }
}

// One thread a distinct row of the call.
__global__ void __launch_bounds__(kThreads)
    TouchKernel(LookupScratch s, int32_t table, int32_t call_table, const int64_t* unique_rows,
                int lookups, uint64_t time) {
  if (!Runs(*s.group) || s.group->may_replay != 0) return;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= int64_t{s.counts[call_table].unique} + s.counts[call_table].made) return;
  const TableView& view = s.tables[table];
  const uint64_t steps = static_cast<uint64_t>(s.states[table].counters.lookups + lookups);
  view.touches[unique_rows[i]] = view.ttl_clock == TtlClock::kLookups ? steps : time;
}

}  // namespace

Status CudaBackend::Expire(const Executor& exec, const int32_t* token, const DeviceLookup& call) {
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  MortalTables mortal{};
  uint64_t most_buckets = 0;
  for (int t = 0; t < call.tables.count; ++t) {
    const CudaTable& one = table(call.tables.table[t]);
    if (!one.expires()) continue;
    mortal.table[mortal.count++] = call.tables.table[t];
    most_buckets = std::max(most_buckets, one.room().num_buckets);
  }
  if (mortal.count == 0) return Status();
  CheckLengths(exec, token, call);
  const bool together = LaunchesTogether();
  const unsigned enough = Blocks(static_cast<int64_t>(most_buckets) * 32);
  const unsigned blocks = together ? std::min(enough, kBlocksPerSm * num_sms_) : 1u;
  ScratchPlan plan;
  const size_t block_counts = plan.Add<uint32_t>(blocks);
  const size_t histograms = plan.Add<uint32_t>(kDigits * kDigitValues);
  const size_t recorded = plan.Add<uint32_t>(1);
  DYNEMB_RETURN_IF_ERROR(plan.Allocate(exec));
  const ExpireScratch scratch{plan.At<uint32_t>(block_counts), plan.At<uint32_t>(histograms),
                              plan.At<uint32_t>(recorded)};
  return CudaStatus(LaunchTogether(together, ExpireKernel<true>, ExpireKernel<false>, blocks,
                                   stream, mortal, group_, views_, states_, token, outstanding_,
                                   max_outstanding(), Now(), scratch),
                    "expire");
}

Status CudaBackend::Touch(const Executor& exec, const DeviceLookup& call) {
  for (int t = 0; t < call.tables.count; ++t) {
    const int32_t position = call.tables.table[t];
    const int64_t most = call.tables.unique_capacity[t];
    if (!table(position).config().StoresTouches() || most == 0) continue;
    TouchKernel<<<Blocks(most), kThreads, 0, static_cast<cudaStream_t>(exec.stream)>>>(
        call.scratch, position, t, call.tables.unique_rows[t], call.lookups, call.time);
  }
  return CudaStatus(cudaGetLastError(), "touch");
}

}  // namespace dynemb
