// Lookups that change nothing: probe and gather in one pass.
#pragma once  // included by find.cu alone

#include "cuda/end_call.cuh"
#include "cuda/gather_kernels.cuh"

namespace dynemb {

// Row numbers of a find, straight from the index.
template <bool has_splits>
struct FindRowsOf {
  TableState* states;

  __device__ bool Poisoned() const { return false; }
  __device__ int64_t Resolve(const TableView& table, const FeatureParam& feature, int64_t i) const {
    if (!IsMeant<has_splits>(feature, i)) return kRowPadded;
    const Key key = LoadKeyOnDevice(feature, i);
    const int64_t row = FindRowOnDevice(table.index, HashKey(key), key);
    return row >= 0 ? row : kRowRefused;
  }
  __device__ void Number(const TableView&, const FeatureParam&, int64_t, int64_t) const {}
  __device__ void Poison(const FeatureParam&, int64_t) const {}
  // Adds up per block, by its last warp: the counters are few and hot.
  __device__ void Count(const FeatureParam& feature, const IdCounts& counts) const {
    __shared__ unsigned sums[3], warps;
    if (threadIdx.x < 3) sums[threadIdx.x] = 0;
    if (threadIdx.x == 3) warps = 0;
    __syncthreads();
    if (Lane() != 0) return;
    atomicAdd(&sums[0], counts.found);
    atomicAdd(&sums[1], counts.padded);
    atomicAdd(&sums[2], counts.missing);
    __threadfence_block();
    if (atomicAdd(&warps, 1u) + 1 != blockDim.x / 32) return;
    __threadfence_block();
    TableCounters& counters = states[feature.table].counters;
    const auto add = [](int64_t& counter, unsigned* sum) {
      const unsigned n = atomicAdd(sum, 0u);
      if (n != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&counter), n);
    };
    add(counters.found, &sums[0]);
    add(counters.padded, &sums[1]);
    add(counters.missing, &sums[2]);
  }
};

using FindRows = FindRowsOf<false>;

// The same of a call with row splits, which may be wrong.
struct CheckedFindRows : FindRowsOf<true> {
  const GroupState* group;

  __device__ bool Poisoned() const { return group->bad_call != 0; }
};

// A find whose row splits were checked: what is wrong is shown to the host.
__global__ void __launch_bounds__(kEndThreads)
    EndFindKernel(GroupState* group, SnapshotTarget snapshot) {
  if (threadIdx.x == 0) group->bad_call = 0;
  WriteSnapshot(snapshot);
}

// Where features are copied: kThreads ids a block.
template <class Elements, class List, class Rows>
__global__ void __launch_bounds__(kThreads, 5)
    FindKernel(const __grid_constant__ List list, const TableView* views, Rows rows) {
  __shared__ RingMemory<kThreads, kGatherStages, 1> memory;
  const FeatureParam& feature = FeatureOfBlock(list);
  const TableView& table = views[feature.table];
  const int64_t first =
      int64_t{blockIdx.x - feature.first_block} * kThreads + threadIdx.x / 32 * 32;
  const int64_t i = first + Lane();
  const bool is_id = i < feature.num_ids;
  if (rows.Poisoned()) {
    PoisonRows<Elements>(table, feature, first,
                         max(int64_t{0}, min(int64_t{32}, feature.num_ids - first)));
    return;
  }
  const int64_t row = is_id ? rows.Resolve(table, feature, i) : int64_t{kRowPadded};
  IdCounts counts;
  counts.Add(row, is_id);
  rows.Count(feature, counts);
  const unsigned absent = __ballot_sync(kFullWarp, is_id && row < 0);
  WriteRows<Elements>(memory.Mine(), table, feature, first, row, absent, row);
}

}  // namespace dynemb
