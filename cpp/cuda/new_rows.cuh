// First values of rows, written by warps.
#pragma once

#include "cuda/elements.cuh"

namespace dynemb {

// A row that has its first value: where it lies, if anywhere, and which row of an output has
// a copy.
struct NewRow {
  Key key;
  float* row;
  int64_t output;
};

// Position of this lane among those of `mask`.
__device__ inline int RankAmong(unsigned mask) { return __popc(mask & ((1u << Lane()) - 1)); }

// Columns [column, column + 4) of a row of the output, which is not padded.
template <class Elements>
__device__ void StoreColumns(const Piece<4>& four, int column, int dim,
                             typename Elements::Output out) {
  out.Advance(column);
  if (dim % 4 == 0) {
    out.template Store<4>(four);
    return;
  }
#pragma unroll
  for (int c = 0; c < 4; ++c, out.Advance(1)) {
    if (column + c < dim) out.template Store<1>(Piece<1>{{four.value[c]}});
  }
}

// Writes the values of new rows of one table; value(random) of a Philox word. Teams of
// lanes take a row each. feature: whose output has copies, or null.
template <class Elements, class Value>
__device__ void InitRows(const TableView& table, const FeatureParam* feature, const NewRow* rows,
                         int count, const Value& value) {
  const int dim = table.layout.dim, padded = RowLayout::Padded(dim);
  const Teams<4> teams(LanesOfRow(padded, 4, 1));
  const uint32_t key0 = static_cast<uint32_t>(table.initializer.stream);
  const uint32_t key1 = static_cast<uint32_t>(table.initializer.stream >> 32);
  for (int n = teams.team; n < count; n += teams.count()) {
    const NewRow one = rows[n];
    // Rows are padded to 16 bytes, so the last block may be written whole.
    for (int column = teams.column(); column < padded; column += teams.columns()) {
      const PhiloxBlock random =
          Philox4x32({{static_cast<uint32_t>(one.key), static_cast<uint32_t>(one.key >> 32),
                       static_cast<uint32_t>(column / 4), 0u}},
                     key0, key1);
      const Piece<4> four{{value(random.word[0]), value(random.word[1]), value(random.word[2]),
                           value(random.word[3])}};
      if (one.row != nullptr) Elements::StoreFour(table.layout, one.row, column, four);
      if (feature == nullptr) continue;
      StoreColumns<Elements>(Elements::Rounded(table.layout, four), column, dim,
                             typename Elements::Output(*feature, one.output * dim));
    }
  }
}

// New rows of one table, by a warp; as InitRows.
template <class Elements>
__device__ void InitRowsByWarp(const TableView& table, const FeatureParam* feature,
                               const NewRow* rows, int count) {
  const RowInitializer init = table.initializer;
  switch (init.kind) {
    case InitializerKind::kConstant:
      InitRows<Elements>(table, feature, rows, count, [&](uint32_t) { return init.parameter; });
      break;
    case InitializerKind::kUniform:
      InitRows<Elements>(table, feature, rows, count,
                         [&](uint32_t r) { return UniformValue(r, init.parameter); });
      break;
    case InitializerKind::kNormal:
    case InitializerKind::kTruncatedNormal:
      InitRows<Elements>(table, feature, rows, count,
                         [&](uint32_t r) { return InitialValue(init, r); });
      break;
  }
  const int64_t state = table.layout.VectorOffset(0);
  if (state == table.stride_floats) return;
  for (int n = 0; n < count; ++n) {
    if (rows[n].row == nullptr) continue;
    for (int64_t i = state + Lane(); i < table.stride_floats; i += 32) {
      float value = table.FirstState(i);
      if constexpr (Elements::kAre16) {
        const int64_t word = i - table.layout.KeyOffset();
        if (table.layout.keeps_key && (word == 0 || word == 1)) {
          value = FloatOf(static_cast<uint32_t>(rows[n].key >> (32 * word)));
        }
      }
      rows[n].row[i] = value;
    }
  }
}

}  // namespace dynemb
