// Which absent keys of a lookup are let in: between the probe and whatever makes rows.
//
// The probe leaves ids without a row in their elections. Here they are sorted by key,
// stably, so an id's place in its run is its place among the ids of its key in the
// batch. Each is judged alone; the first one of a run that is let in brings the key,
// those before it are refused. Then runs are counted.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "core/admit.h"
#include "cuda/call_state.cuh"
#include "cuda/cuda_backend.h"
#include "cuda/scratch.h"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

// The last table whose `first` is not behind `place`.
__device__ int GatedTableAt(const int64_t* first, int count, int64_t place) {
  int low = 0, high = count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (first[middle] <= place) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// One thread an id: says which key it asks for. Of a replayed lookup nobody asks: those
// that were refused are refused again, although their keys may have rows by now.
template <class Tables>
__global__ void __launch_bounds__(kThreads)
    AskKernel(const __grid_constant__ Tables tables, LookupScratch s, AdmitScratch a,
              bool counts_only) {
  const int64_t place = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (place >= tables.num_ids) return;
  const int t = GatedTableAt(tables.first_place, tables.count, place);
  const int64_t id = tables.first_id[t] + place - tables.first_place[t];
  a.elected[place] = a.not_asking;
  a.ids[place] = static_cast<uint32_t>(id);
  if (!Runs(*s.group)) return;
  const int64_t code = s.rows[id];
  if (s.group->may_replay != 0) {
    if (IsSlot(code) || a.was_refused[id] != 0) s.rows[id] = kRowRefused;
    return;
  }
  if (!counts_only) a.was_refused[id] = 0;
  if (!IsSlot(code)) return;
  const uint32_t elected = static_cast<uint32_t>(s.elections[kSlot - code] & 0xFFFFFFFFu);
  a.elected[place] = elected;
  if (elected == static_cast<uint32_t>(id)) a.admitted_place[elected] = kNobodyAdmitted;
}

// From here on one thread a place in the sorted order.
__global__ void __launch_bounds__(kThreads) BeginRunsKernel(AdmitScratch a, int64_t count) {
  const int64_t place = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (place >= count) return;
  const uint32_t elected = a.sorted_elected[place];
  if (elected == a.not_asking) return;
  if (place == 0 || a.sorted_elected[place - 1] != elected) {
    a.first_place[elected] = static_cast<uint32_t>(place);
  }
}

// Finds the first id of each key that is let in.
template <class Tables>
__global__ void __launch_bounds__(kThreads)
    JudgeKernel(const __grid_constant__ Tables tables, LookupScratch s, AdmitScratch a) {
  const int64_t place = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (place >= tables.num_ids) return;
  const uint32_t elected = a.sorted_elected[place];
  if (elected == a.not_asking) return;
  const int32_t table = tables.table[GatedTableAt(tables.first_id, tables.count, elected)];
  const TableView& view = s.tables[table];
  const Key key = s.new_keys[elected];
  const bool counts = view.admission.kind == AdmissionKind::kFrequency;
  Applicant applicant{key, counts ? SeenBefore(view.sketch, key) : 0,
                      static_cast<uint64_t>(s.states[table].counters.lookups) + 1,
                      static_cast<uint64_t>(place - a.first_place[elected]) + 1};
  if (!IsAdmitted(view.admission, applicant)) return;
  // One that would follow another is not the first: a hot key's ids need not queue.
  if (applicant.occurrence > 1) {
    --applicant.occurrence;
    if (IsAdmitted(view.admission, applicant)) return;
  }
  uint32_t* first = a.admitted_place + elected;
  const uint32_t mine = static_cast<uint32_t>(place);
  if (*static_cast<volatile uint32_t*>(first) > mine) atomicMin(first, mine);
}

__device__ void CountIds(const SketchView& sketch, Key key, uint64_t ids) {
  for (int group = 0; group < kSketchGroups; ++group) {
    const uint64_t position = CounterOf(sketch, key, group);
    unsigned* word = reinterpret_cast<unsigned*>(sketch.counters + position / 4 * 4);
    const int shift = static_cast<int>(position % 4) * 8;
    for (unsigned seen = *word;;) {
      const uint8_t counter = static_cast<uint8_t>(seen >> shift);
      const uint8_t sum = SaturatingSum(counter, ids);
      if (sum == counter) break;
      const unsigned counted = (seen & ~(0xFFu << shift)) | unsigned{sum} << shift;
      const unsigned before = atomicCAS(word, seen, counted);
      if (before == seen) break;
      seen = before;
    }
  }
}

// Carries the verdicts out and, unless the call only counts its new keys, remembers the
// ids of each key.
template <class Tables>
__global__ void __launch_bounds__(kThreads)
    AdmitKernel(const __grid_constant__ Tables tables, LookupScratch s, AdmitScratch a,
                bool counts_only) {
  const int64_t base = int64_t{blockIdx.x} * kThreads, place = base + threadIdx.x;
  // Those that ask come first, sorted by table.
  const uint32_t first_elected = a.sorted_elected[base];
  if (first_elected == a.not_asking) return;
  const auto table_at = [&](uint32_t elected) {
    return GatedTableAt(tables.first_id, tables.count, elected);
  };
  const int32_t first_table = tables.call_table[table_at(first_elected)];
  const uint32_t elected = place < tables.num_ids ? a.sorted_elected[place] : a.not_asking;
  const bool asks = elected != a.not_asking;
  int t = 0;
  int64_t id = 0;
  bool refused = false, brings = false;
  if (asks) {
    t = table_at(elected);
    id = a.sorted_ids[place];
    const uint32_t admitted = a.admitted_place[elected];
    refused = place < int64_t{admitted};
    brings = place == int64_t{admitted};
    const bool bounded = s.tables[tables.table[t]].scores != nullptr;
    if (refused) {
      s.rows[id] = kRowRefused;
      if (!counts_only) a.was_refused[id] = 1;
    } else if (!bounded) {
      if (!brings) s.rows[id] = kSameKey - int64_t{a.sorted_ids[admitted]};
    } else if (brings) {  // the others have the key's election in the row array, as before
      s.elections[kSlot - s.rows[id]] =
          static_cast<uint64_t>(s.epoch) << 32 | static_cast<uint64_t>(id);
      brings = false;
    }
  }
  BlockTakeOfTable(refused, tables.call_table[t], first_table, s.counts, &CallCounts::not_admitted);
  const int32_t nth =
      BlockTakeOfTable(brings, tables.call_table[t], first_table, s.counts, &CallCounts::new_rows);
  if (brings) s.rows[id] = kNewRow - int64_t{nth};
  if (!asks || counts_only) return;
  const TableView& view = s.tables[tables.table[t]];
  const bool ends = place + 1 == tables.num_ids || a.sorted_elected[place + 1] != elected;
  if (!ends || view.admission.kind != AdmissionKind::kFrequency) return;
  CountIds(view.sketch, s.new_keys[elected],
           static_cast<uint64_t>(place - a.first_place[elected]) + 1);
}

__device__ unsigned HalvedBytes(unsigned four, int times) {
  return times < 8 ? four >> times & (0xFFu >> times) * 0x01010101u : 0u;
}

// Halves the counters of tables that have counted enough; the end of the call starts
// their count anew. Some blocks a table.
template <class Tables>
__global__ void __launch_bounds__(kThreads)
    HalveKernel(const __grid_constant__ Tables tables, LookupScratch s) {
  if (!Runs(*s.group) || s.group->may_replay != 0) return;
  const int32_t table = tables.table[blockIdx.y];
  const SketchView& sketch = s.tables[table].sketch;
  if (sketch.num_blocks == 0) return;
  const int64_t num_counters = static_cast<int64_t>(sketch.num_blocks) * kCountersPerBlock;
  const int64_t counted = s.states[table].counted + s.counts[tables.call_table[blockIdx.y]].missed;
  const int times = Halvings(counted, num_counters);
  if (times == 0) return;
  uint4* counters = reinterpret_cast<uint4*>(sketch.counters);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < num_counters / 16;
       i += int64_t{gridDim.x} * kThreads) {
    const uint4 seen = counters[i];
    counters[i] = make_uint4(HalvedBytes(seen.x, times), HalvedBytes(seen.y, times),
                             HalvedBytes(seen.z, times), HalvedBytes(seen.w, times));
  }
}

}  // namespace

Status CudaBackend::PrepareAdmission(const Executor& exec, DeviceLookup* call) {
  GatedTables& gated = call->gated;
  for (int t = 0; t < call->tables.count; ++t) {
    const TableConfig& config = configs()[static_cast<size_t>(call->tables.table[t])];
    if (config.admission.kind == AdmissionKind::kAll) continue;
    const int at = gated.count++;
    gated.first_id[at] = call->tables.first_id[t];
    gated.first_place[at] = gated.num_ids;
    gated.table[at] = call->tables.table[t];
    gated.call_table[at] = t;
    gated.num_ids += call->ids_of_table[static_cast<size_t>(t)];
  }
  if (gated.num_ids == 0) return Status();
  DYNEMB_RETURN_IF_ERROR(was_refused_.Commit(call->num_ids));
  AdmitScratch& a = call->admit;
  a.was_refused = reinterpret_cast<uint8_t*>(was_refused_.data());
  a.not_asking = static_cast<uint32_t>(call->num_ids);
  uint32_t* none = nullptr;
  DYNEMB_CUDA_RETURN_IF_ERROR(cub::DeviceRadixSort::SortPairs(
      nullptr, a.sort_bytes, none, none, none, none, static_cast<int>(gated.num_ids), 0,
      std::bit_width(a.not_asking), static_cast<cudaStream_t>(exec.stream)));
  ScratchPlan plan;
  const size_t elected = plan.Add<uint32_t>(gated.num_ids);
  const size_t ids = plan.Add<uint32_t>(gated.num_ids);
  const size_t sorted_elected = plan.Add<uint32_t>(gated.num_ids);
  const size_t sorted_ids = plan.Add<uint32_t>(gated.num_ids);
  const size_t first_place = plan.Add<uint32_t>(call->num_ids);
  const size_t admitted_place = plan.Add<uint32_t>(call->num_ids);
  const size_t sort = plan.Add<std::byte>(static_cast<int64_t>(a.sort_bytes));
  DYNEMB_RETURN_IF_ERROR(plan.Allocate(exec));
  a.elected = plan.At<uint32_t>(elected);
  a.ids = plan.At<uint32_t>(ids);
  a.sorted_elected = plan.At<uint32_t>(sorted_elected);
  a.sorted_ids = plan.At<uint32_t>(sorted_ids);
  a.first_place = plan.At<uint32_t>(first_place);
  a.admitted_place = plan.At<uint32_t>(admitted_place);
  a.sort = plan.At<std::byte>(sort);
  return Status();
}

Status CudaBackend::Admit(const Executor& exec, bool counts_only, DeviceLookup* call) {
  const int64_t count = call->gated.num_ids;
  if (count == 0) return Status();
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  const LookupScratch& s = call->scratch;
  AdmitScratch& a = call->admit;
  Bytes most_counters = 0;
  for (int t = 0; t < call->gated.count; ++t) {
    most_counters = std::max(most_counters, table(call->gated.table[t]).AdmissionBytes());
  }
  cudaError_t sorted = cudaSuccess;
  WithFewGated(call->gated, [&](const auto& tables) {
    AskKernel<<<Blocks(count), kThreads, 0, stream>>>(tables, s, a, counts_only);
    sorted = cub::DeviceRadixSort::SortPairs(a.sort, a.sort_bytes, a.elected, a.sorted_elected,
                                             a.ids, a.sorted_ids, static_cast<int>(count), 0,
                                             std::bit_width(a.not_asking), stream);
    BeginRunsKernel<<<Blocks(count), kThreads, 0, stream>>>(a, count);
    JudgeKernel<<<Blocks(count), kThreads, 0, stream>>>(tables, s, a);
    AdmitKernel<<<Blocks(count), kThreads, 0, stream>>>(tables, s, a, counts_only);
    if (counts_only || most_counters == 0) return;
    const unsigned blocks = std::min(Blocks(most_counters / 16), 4 * num_sms_);
    HalveKernel<<<dim3(blocks, static_cast<unsigned>(tables.count)), kThreads, 0, stream>>>(tables,
                                                                                            s);
  });
  DYNEMB_CUDA_RETURN_IF_ERROR(sorted);
  return CudaStatus(cudaGetLastError(), "admit");
}

}  // namespace dynemb
