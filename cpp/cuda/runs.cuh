// Sorted gradients cut into runs of equal length, which make all warps equal,
// whatever the skew: what the kernels that step and join runs share.
#pragma once

#include "cuda/clipped.cuh"
#include "cuda/gradient_call.h"
#include "cuda/pieces.cuh"

namespace dynemb {

inline constexpr int kRunThreads = 64;
inline constexpr int kRunStages = 8;
// A warp reads the ids of a run 32 / teams at a time: no fewer than the ring is deep.
inline constexpr int kRunLanes = 8;

template <class List>
__device__ const GradientParam& FeatureOfId(const List& list, uint32_t id) {
  int low = 0, high = list.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (list.features[middle].first_id <= id) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return list.features[low];
}

// Unique row of an id that has one.
template <class List>
__device__ uint32_t UniqueOfId(const List& list, uint32_t id) {
  const GradientParam& feature = FeatureOfId(list, id);
  return static_cast<uint32_t>(UniqueOf(feature, id - feature.first_id));
}

// Table with the last `first` that is not above `at`.
template <class Tables>
__device__ const UpdateTable& TableAt(const Tables& list, uint32_t UpdateTable::* first,
                                      uint32_t at) {
  int low = 0, high = list.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (list.tables[middle].*first <= at) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return list.tables[low];
}

__device__ inline StepOperands OperandsOf(const UpdateScratch& scratch, int32_t table) {
  const int32_t step = *scratch.step;
  return {scratch.learning_rates[table], step < 0 ? scratch.group->steps : int64_t{step}};
}

// Sorted gradients [begin, end) of a table, and the partial sums of its runs.
struct TableRuns {
  uint32_t begin, end;
  const UpdateTable& table;
  const UpdateScratch& scratch;

  __device__ TableRuns(const UpdateTable& of, const UpdateScratch& s) : table(of), scratch(s) {
    begin = s.offsets[of.first_unique];
    end = s.offsets[of.first_unique + of.capacity];
  }
  __device__ uint32_t RunBegin(uint32_t run) const { return begin + run * kRunLength; }
  __device__ uint32_t RunEnd(uint32_t run) const { return min(end, RunBegin(run) + kRunLength); }
  // Sum of the run's first row, which began in an earlier run.
  __device__ float* Head(uint32_t run) const {
    return scratch.partials + int64_t{2} * (table.first_run + run) * scratch.partial_stride;
  }
  // Sum of its last row, which began here and ends in a later run.
  __device__ float* Tail(uint32_t run) const { return Head(run) + scratch.partial_stride; }
  __device__ int64_t Row(uint32_t unique) const {
    return table.unique_rows[unique - table.first_unique];
  }
};

}  // namespace dynemb
