// What the rows of a table and of a call are made of. Kernels are compiled for either kind,
// and features of one kind share their launches.
#pragma once

#include "core/row_type.h"
#include "cuda/pieces.cuh"

namespace dynemb {

// Floats in the table and in the output.
struct FloatElements {
  static constexpr bool kAre16 = false;
  static constexpr int kColumns = 4;                       // of a lane, at most
  static constexpr int kPoolBlocks = 4, kChunkBlocks = 3;  // a multiprocessor

  // A place in the output of a feature.
  struct Output {
    float* at;

    __device__ Output(const FeatureParam& feature, int64_t column)
        : at(static_cast<float*>(feature.rows_out) + column) {}
    __device__ void Advance(int64_t columns) { at += columns; }
    template <int VEC>
    __device__ void Store(const Piece<VEC>& piece) const {
      piece.StoreStreaming(at);
    }
  };

  template <int VEC, class RingOfRows>
  __device__ static void CopyRow(const RingOfRows& ring, int turn, const float* row, int column) {
    ring.template Copy<VEC>(turn, 0, row + column);
  }
  template <int VEC, class RingOfRows>
  __device__ static Piece<VEC> ReadRow(const RingOfRows& ring, const RowLayout&, int turn) {
    return ring.template Read<VEC>(turn, 0);
  }
  // What the table would keep of first values.
  template <int VEC>
  __device__ static Piece<VEC> Rounded(const RowLayout&, const Piece<VEC>& piece) {
    return piece;
  }
  __device__ static void StoreFour(const RowLayout&, float* row, int column, const Piece<4>& four) {
    four.Store(row + column);
  }
};

// Calls body<kType>() for a type of 16 bits: asked once for all columns of a lane.
template <class Body>
__device__ void WithType(RowType type, const Body& body) {
  if (type == RowType::kBfloat16) {
    body.template operator()<RowType::kBfloat16>();
  } else {
    body.template operator()<RowType::kFloat16>();
  }
}

// 16 bits a column.
template <int VEC>
struct Bits16 {
  uint16_t value[VEC];

  __device__ static Bits16 Nearest(RowType type, const Piece<VEC>& piece) {
    Bits16 bits;
    WithType(type, [&]<RowType kType>() {
#pragma unroll
      for (int v = 0; v < VEC; ++v) bits.value[v] = Nearest16(kType, piece.value[v]);
    });
    return bits;
  }
  __device__ static Bits16 Load(SharedAddress from) {
    Bits16 bits;
    if constexpr (VEC == 8) {
      uint4 words;
      from.Load(&words);
      memcpy(&bits, &words, sizeof words);
    } else if constexpr (VEC == 4) {
      uint2 words;
      from.Load(&words);
      memcpy(&bits, &words, sizeof words);
    } else {
      from.Load(&bits.value[0]);
    }
    return bits;
  }
  __device__ Piece<VEC> Floats(RowType type) const {
    Piece<VEC> piece;
    WithType(type, [&]<RowType kType>() {
#pragma unroll
      for (int v = 0; v < VEC; ++v) piece.value[v] = FloatOf16(kType, value[v]);
    });
    return piece;
  }
  __device__ void Store(void* to) const {
    if constexpr (VEC == 1) {
      *static_cast<uint16_t*>(to) = value[0];
    } else if constexpr (VEC == 4) {
      uint2 words;
      memcpy(&words, value, sizeof words);
      *static_cast<uint2*>(to) = words;
    } else {
      uint4 words;
      memcpy(&words, value, sizeof words);
      *static_cast<uint4*>(to) = words;
    }
  }
  __device__ void StoreStreaming(void* to) const {
    if constexpr (VEC == 1) {
      __stcs(static_cast<uint16_t*>(to), value[0]);
    } else if constexpr (VEC == 4) {
      uint2 words;
      memcpy(&words, value, sizeof words);
      __stcs(static_cast<uint2*>(to), words);
    } else {
      uint4 words;
      memcpy(&words, value, sizeof words);
      __stcs(static_cast<uint4*>(to), words);
    }
  }
};

// 16 bits a column in the table, and in the output either these or floats.
struct Elements16 {
  static constexpr bool kAre16 = true;
  static constexpr int kColumns = 8;
  static constexpr int kPoolBlocks = 3, kChunkBlocks = 2;

  struct Output {
    char* at;
    RowType type;  // of the output

    __device__ Output(const FeatureParam& feature, int64_t column)
        : at(static_cast<char*>(feature.rows_out)), type(feature.output_type) {
      Advance(column);
    }
    __device__ void Advance(int64_t columns) {
      at += columns * (type == RowType::kFloat32 ? 4 : 2);
    }
    template <int VEC>
    __device__ void Store(const Piece<VEC>& piece) const {
      if (type == RowType::kFloat32) {
        piece.StoreStreaming(reinterpret_cast<float*>(at));
      } else {
        Bits16<VEC>::Nearest(type, piece).StoreStreaming(at);
      }
    }
  };

  template <int VEC, class RingOfRows>
  __device__ static void CopyRow(const RingOfRows& ring, int turn, const float* row, int column) {
    ring.template Copy<VEC>(turn, 0, reinterpret_cast<const uint16_t*>(row) + column);
  }
  template <int VEC, class RingOfRows>
  __device__ static Piece<VEC> ReadRow(const RingOfRows& ring, const RowLayout& layout, int turn) {
    return Bits16<VEC>::Load(ring.Slot(turn, 0)).Floats(layout.type);
  }
  template <int VEC>
  __device__ static Piece<VEC> Rounded(const RowLayout& layout, const Piece<VEC>& piece) {
    return Bits16<VEC>::Nearest(layout.type, piece).Floats(layout.type);
  }
  __device__ static void StoreFour(const RowLayout& layout, float* row, int column,
                                   const Piece<4>& four) {
    Bits16<4>::Nearest(layout.type, four).Store(reinterpret_cast<uint16_t*>(row) + column);
  }
};

// Calls body<VEC>() with the columns that a lane takes of rows of `dim`.
template <class Elements, class Body>
__device__ void WithColumns(int dim, Body&& body) {
  if (dim % Elements::kColumns == 0) {
    body.template operator()<Elements::kColumns>();
  } else {
    body.template operator()<1>();
  }
}

}  // namespace dynemb
