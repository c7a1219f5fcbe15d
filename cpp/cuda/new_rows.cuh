// First values of rows, written by warps.
#pragma once

#include "cuda/pieces.cuh"

namespace dynemb {

// A row that has its first value: where it lies, and where a copy goes. Either may be null.
struct NewRow {
  Key key;
  float* row;
  float* out;
};

// Position of this lane among those of `mask`.
__device__ inline int RankAmong(unsigned mask) { return __popc(mask & ((1u << Lane()) - 1)); }

// Columns [column, column + 4) of a row of the output, which is not padded.
__device__ inline void StoreColumns(const float4& four, int column, int dim, float* row) {
  if (dim % 4 == 0) {
    __stcs(reinterpret_cast<float4*>(row + column), four);
    return;
  }
  const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if (column + c < dim) row[column + c] = values[c];
  }
}

// Writes the values of new rows of one table; value(random) of a Philox word. Teams of
// lanes take a row each.
template <class Value>
__device__ void InitRows(const TableView& table, const NewRow* rows, int count,
                         const Value& value) {
  const int dim = table.layout.dim, padded = RowLayout::Padded(dim);
  const Teams<4> teams(LanesOfRow(padded, 1));
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
      const float4 four = make_float4(value(random.word[0]), value(random.word[1]),
                                      value(random.word[2]), value(random.word[3]));
      if (one.row != nullptr) *reinterpret_cast<float4*>(one.row + column) = four;
      if (one.out != nullptr) StoreColumns(four, column, dim, one.out);
    }
  }
}

// New rows of one table, by a warp.
__device__ inline void InitRowsByWarp(const TableView& table, const NewRow* rows, int count) {
  const RowInitializer init = table.initializer;
  switch (init.kind) {
    case InitializerKind::kConstant:
      InitRows(table, rows, count, [&](uint32_t) { return init.parameter; });
      break;
    case InitializerKind::kUniform:
      InitRows(table, rows, count, [&](uint32_t r) { return UniformValue(r, init.parameter); });
      break;
    case InitializerKind::kNormal:
    case InitializerKind::kTruncatedNormal:
      InitRows(table, rows, count, [&](uint32_t r) { return InitialValue(init, r); });
      break;
  }
  const int64_t state = table.layout.VectorOffset(0);
  if (state == table.stride_floats) return;
  for (int n = 0; n < count; ++n) {
    if (rows[n].row == nullptr) continue;
    for (int64_t i = state + Lane(); i < table.stride_floats; i += 32) {
      rows[n].row[i] = table.FirstState(i);
    }
  }
}

}  // namespace dynemb
