// Where the parts of a row lie:
//   [embedding | state vector 0 | state vector 1 | scalars, key], each part padded to
//   16 bytes, so that every part can be moved in 16-byte pieces, and rows of 128 bytes and
//   more to 32, the unit in which a GPU reads: 512 bytes are then 16 of them, and not 17.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/annotations.h"
#include "core/row_type.h"
#include "core/types.h"

namespace dynemb {

struct RowLayout {
  int dim;                           // columns of the embedding
  int vectors;                       // state vectors
  int scalars;                       // numbers per row
  RowType type = RowType::kFloat32;  // of the embedding; state is of floats
  bool keeps_key = false;            // where rounding needs it

  DYNEMB_HD static int Padded(int floats) { return (floats + 3) / 4 * 4; }
  // Of memory, in which 16-bit columns take half.
  DYNEMB_HD int EmbeddingFloats() const {
    return Padded(type == RowType::kFloat32 ? dim : (dim + 1) / 2);
  }
  DYNEMB_HD int64_t VectorOffset(int vector) const {
    return static_cast<int64_t>(EmbeddingFloats()) + static_cast<int64_t>(Padded(dim)) * vector;
  }
  DYNEMB_HD int64_t ScalarOffset() const { return VectorOffset(vectors); }
  // The numbers of a row, as bits: whole numbers lie there too.
  DYNEMB_HD void LoadScalars(const float* row, int32_t* bits) const {
    if (scalars > 0)
      memcpy(bits, row + ScalarOffset(), sizeof *bits * static_cast<size_t>(scalars));
  }
  DYNEMB_HD void StoreScalars(const int32_t* bits, float* row) const {
    if (scalars > 0)
      memcpy(row + ScalarOffset(), bits, sizeof *bits * static_cast<size_t>(scalars));
  }
  // A column as a number, whatever it is kept as; and the nearest that can be kept.
  DYNEMB_HD float LoadColumn(const float* row, int column) const {
    if (type == RowType::kFloat32) return row[column];
    return FloatOf16(type, reinterpret_cast<const uint16_t*>(row)[column]);
  }
  DYNEMB_HD void StoreColumn(float value, float* row, int column) const {
    if (type == RowType::kFloat32) {
      row[column] = value;
    } else {
      reinterpret_cast<uint16_t*>(row)[column] = Nearest16(type, value);
    }
  }
  DYNEMB_HD int64_t KeyOffset() const { return ScalarOffset() + scalars; }
  DYNEMB_HD int64_t StrideFloats() const {
    const int64_t floats = VectorOffset(vectors) + Padded(scalars + (keeps_key ? 2 : 0));
    return floats < 32 ? floats : (floats + 7) / 8 * 8;
  }
  DYNEMB_HD Key LoadKey(const float* row) const {
    Key key;
    memcpy(&key, row + KeyOffset(), sizeof key);
    return key;
  }
  DYNEMB_HD void StoreKey(Key key, float* row) const {
    if (keeps_key) memcpy(row + KeyOffset(), &key, sizeof key);
  }
  DYNEMB_HD Bytes StrideBytes() const { return StrideFloats() * static_cast<Bytes>(sizeof(float)); }
  // Floats of state as dynemb_jax sees them: vectors, then scalars, no padding.
  DYNEMB_HD int64_t StateFloats() const { return static_cast<int64_t>(dim) * vectors + scalars; }
};

}  // namespace dynemb
