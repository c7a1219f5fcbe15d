// Sorted gradients cut into runs of equal length, which make all warps equal,
// whatever the skew: what the kernels that step and join runs share.
#pragma once

#include <type_traits>

#include "cuda/clipped.cuh"
#include "cuda/elements.cuh"
#include "cuda/gradient_call.h"

namespace dynemb {

inline constexpr int kRunThreads = 64;
// A warp reads the ids of a run 32 / teams at a time: no fewer than the ring is deep.
inline constexpr int kRunLanes = 8;

// Gradients and rows of floats.
struct FloatRuns {
  static constexpr int kColumns = 4;  // of a lane, at most
  // Parts of 16 bytes that a lane's columns take in a ring.
  static constexpr int kGradParts = 1, kStateParts = 1;
  static constexpr bool kRounds = false;
  using Grad = float;

  __device__ FloatRuns(const TableView&, int64_t) {}
  __device__ bool KeepsKey() const { return false; }
  __device__ static float* Columns(float* row) { return row; }
  template <int VEC, class Ring>
  __device__ Piece<VEC> ReadGrad(const Ring& ring, int turn) const {
    return ring.template Read<VEC>(turn, 0);
  }
  template <int VEC, class Ring>
  __device__ Piece<VEC> ReadRow(const Ring& ring, int turn, int part) const {
    return ring.template Read<VEC>(turn, part);
  }
  template <int VEC>
  __device__ void Store(const Piece<VEC>& piece, Key, float* row, int column) const {
    piece.Store(row + column);
  }
  __device__ float Load(const float* row, int column) const { return row[column]; }
};

// Rows of 16 bits a column, and gradients of as many or floats. Lanes take eight columns: with
// four, rounding takes twice the lanes and the step of a zipf batch 390 us for 297.
template <bool kGrads16>
struct Runs16 {
  static constexpr int kColumns = 8;
  static constexpr int kGradParts = kGrads16 ? 1 : 2, kStateParts = 2;
  static constexpr bool kRounds = true;
  using Grad = std::conditional_t<kGrads16, uint16_t, float>;

  RowType type;
  bool by_chance;
  RowRounding rounding;

  __device__ Runs16(const TableView& view, int64_t step)
      : type(view.layout.type),
        by_chance(view.layout.keeps_key),
        rounding(view.initializer.stream, step) {}
  __device__ bool KeepsKey() const { return by_chance; }
  __device__ static uint16_t* Columns(float* row) { return reinterpret_cast<uint16_t*>(row); }
  template <int VEC, class Ring>
  __device__ Piece<VEC> ReadGrad(const Ring& ring, int turn) const {
    if constexpr (kGrads16) return Bits16<VEC>::Load(ring.Slot(turn, 0)).Floats(type);
    return ring.template Read<VEC>(turn, 0);
  }
  template <int VEC, class Ring>
  __device__ Piece<VEC> ReadRow(const Ring& ring, int turn, int part) const {
    return Bits16<VEC>::Load(ring.Slot(turn, part)).Floats(type);
  }
  // As RoundRow of core/row_type.h.
  template <int VEC>
  __device__ void Store(const Piece<VEC>& piece, Key key, float* row, int column) const {
    Bits16<VEC> bits;
    if (by_chance) {
      const PhiloxBlock random = rounding.Random(key, column / 8);
      WithType(type, [&]<RowType kType>() {
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          const int place = (column + v) % 8;
          uint32_t word = random.word[0];
#pragma unroll
          for (int w = 1; w < 4; ++w) word = place / 2 == w ? random.word[w] : word;
          bits.value[v] =
              Stochastic16(kType, piece.value[v], place % 2 == 0 ? word & 0xFFFFu : word >> 16);
        }
      });
    } else {
      bits = Bits16<VEC>::Nearest(type, piece);
    }
    bits.Store(Columns(row) + column);
  }
  __device__ float Load(const float* row, int column) const {
    return FloatOf16(type, reinterpret_cast<const uint16_t*>(row)[column]);
  }
};

// Whether the columns of a row are more than the place for what the rule writes.
template <class Rule>
inline constexpr bool kReadsRow = !requires { typename Rule::OnlyWrites; };

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
