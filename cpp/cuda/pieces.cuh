// How warps move rows: pieces of a row a lane, and a ring of shared memory through
// which many copies are in flight without a register being held.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

#include "cuda/device_ops.cuh"

namespace dynemb {

// VEC columns of one row as floats, by the lanes of a warp: of floats 4, of 16 bits 8, where
// rows of the output are aligned to 16 bytes, else 1.
template <int VEC>
struct Piece {
  float value[VEC];

  __device__ static Piece Load(const float* from) {
    Piece piece;
    if constexpr (VEC == 1) {
      piece.value[0] = *from;
    } else {
#pragma unroll
      for (int v = 0; v < VEC; v += 4) piece.Set(v, *reinterpret_cast<const float4*>(from + v));
    }
    return piece;
  }
  __device__ void Set(int first, const float4& four) {
    value[first] = four.x;
    value[first + 1] = four.y;
    value[first + 2] = four.z;
    value[first + 3] = four.w;
  }
  __device__ float4 Four(int first) const {
    return make_float4(value[first], value[first + 1], value[first + 2], value[first + 3]);
  }
  __device__ void Store(float* to) const {
    if constexpr (VEC == 1) {
      *to = value[0];
    } else {
#pragma unroll
      for (int v = 0; v < VEC; v += 4) *reinterpret_cast<float4*>(to + v) = Four(v);
    }
  }
  // Written once and not read here again: keep the cache for rows.
  __device__ void StoreStreaming(float* to) const {
    if constexpr (VEC == 1) {
      __stcs(to, value[0]);
    } else {
#pragma unroll
      for (int v = 0; v < VEC; v += 4) __stcs(reinterpret_cast<float4*>(to + v), Four(v));
    }
  }
  __device__ static Piece Filled(float x) {
    Piece piece;
    for (float& v : piece.value) v = x;
    return piece;
  }
  __device__ void AddScaled(float scale, const Piece& other) {
#pragma unroll
    for (int v = 0; v < VEC; ++v) value[v] += scale * other.value[v];
  }
};

// Lanes that share a row: a power of two, at least `least`, enough for its columns or
// the whole warp. most: as of ColumnsOfLane.
DYNEMB_HD int LanesOfRow(int dim, int most, int least) {
  const int pieces = dim / ColumnsOfLane(dim, most);
  int lanes = least;
  while (lanes < 32 && lanes < pieces) lanes *= 2;
  return lanes;
}

// A warp works on 32 / lanes rows side by side; this lane is `member` of the team
// that has row number `team` of them.
template <int VEC>
struct Teams {
  int lanes, team, member;

  __device__ explicit Teams(int lanes_of_row)
      : lanes(lanes_of_row), team(Lane() / lanes_of_row), member(Lane() % lanes_of_row) {}
  __device__ int count() const { return 32 / lanes; }
  __device__ int column() const { return member * VEC; }
  __device__ int columns() const { return lanes * VEC; }
  __device__ int first_lane() const { return team * lanes; }
  // Sums over the teams of the warp, lane by lane; all get the result.
  __device__ void Combine(Piece<VEC>* sum) const {
    for (int mask = lanes; mask < 32; mask *= 2) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        sum->value[v] += __shfl_xor_sync(kFullWarp, sum->value[v], mask);
      }
    }
  }
};

// Copies in flight of one warp, STAGES deep, PARTS pieces a stage and lane. A lane
// reads what it copied itself, so waiting needs no other lane.
template <int STAGES, int PARTS>
struct Ring {
  static constexpr int kAhead = STAGES - 1;

  float4* base;  // this lane's, [STAGES][PARTS], 32 apart

  __device__ float* Slot(int turn, int part) const {
    return reinterpret_cast<float*>(base + ((turn % STAGES) * PARTS + part) * 32);
  }
  // Floats in parts of 16 bytes from `part` on.
  template <int VEC>
  __device__ void Copy(int turn, int part, const float* from) const {
#pragma unroll
    for (int v = 0; v < VEC; v += 4) {
      __pipeline_memcpy_async(Slot(turn, part + v / 4), from + v,
                              sizeof(float) * (VEC < 4 ? VEC : 4));
    }
  }
  // Columns of 16 bits; single ones are too small to be copied in the background.
  template <int VEC>
  __device__ void Copy(int turn, int part, const uint16_t* from) const {
    if constexpr (VEC == 1) {
      *reinterpret_cast<uint16_t*>(Slot(turn, part)) = *from;
    } else {
      __pipeline_memcpy_async(Slot(turn, part), from, VEC * sizeof(uint16_t));
    }
  }
  // Ends the copies of a turn, and waits for those of kAhead turns ago.
  __device__ void Turn() const {
    __pipeline_commit();
    __pipeline_wait_prior(kAhead);
  }
  template <int VEC>
  __device__ Piece<VEC> Read(int turn, int part) const {
    Piece<VEC> piece;
    if constexpr (VEC == 1) {
      piece.value[0] = *Slot(turn, part);
    } else {
#pragma unroll
      for (int v = 0; v < VEC; v += 4) {
        piece.Set(v, *reinterpret_cast<const float4*>(Slot(turn, part + v / 4)));
      }
    }
    return piece;
  }
};

// Shared memory of a block's rings, and this lane's ring.
template <int THREADS, int STAGES, int PARTS>
struct RingMemory {
  float4 slots[THREADS / 32][STAGES][PARTS][32];

  __device__ float4* OfWarp() { return &slots[threadIdx.x / 32][0][0][0]; }
  __device__ Ring<STAGES, PARTS> Mine() { return {&slots[threadIdx.x / 32][0][0][Lane()]}; }
};

}  // namespace dynemb
