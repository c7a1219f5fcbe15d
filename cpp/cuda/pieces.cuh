// How warps move rows: pieces of a row a lane, and a ring of shared memory through
// which many copies are in flight without a register being held.
#pragma once

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

// Shared memory by its own addresses. With pointers, the compiler works the address of the
// block's memory out again for every copy, from a register that takes long to read.
struct SharedAddress {
  uint32_t at;

  __device__ static SharedAddress Of(const void* pointer) {
    SharedAddress address{static_cast<uint32_t>(__cvta_generic_to_shared(pointer))};
    asm volatile("" : "+r"(address.at));  // to be kept, not worked out again
    return address;
  }
  __device__ SharedAddress operator+(uint32_t bytes) const { return {at + bytes}; }

  // A copy in the background, of 4, 8 or 16 bytes.
  template <int BYTES>
  __device__ void Copy(const void* from) const {
    if constexpr (BYTES == 16) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
    } else {
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(BYTES)
                   : "memory");
    }
  }
  __device__ void Store(uint16_t bits) const {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(bits) : "memory");
  }
  __device__ float LoadFloat() const {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
    return x;
  }
  __device__ float4 LoadFour() const {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
  }
  __device__ void Load(uint16_t* bits) const {
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(*bits) : "r"(at) : "memory");
  }
  __device__ void Load(uint2* words) const {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(words->x), "=r"(words->y)
                 : "r"(at)
                 : "memory");
  }
  __device__ void Load(uint4* words) const {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words->x), "=r"(words->y), "=r"(words->z), "=r"(words->w)
                 : "r"(at)
                 : "memory");
  }
};

// Copies in flight of one warp, STAGES deep, PARTS pieces a stage and lane. A lane
// reads what it copied itself, so waiting needs no other lane.
template <int STAGES, int PARTS>
struct Ring {
  static constexpr int kAhead = STAGES - 1;

  SharedAddress base;  // this lane's, [STAGES][PARTS] of 16 bytes, 32 apart

  __device__ SharedAddress Slot(int turn, int part) const {
    return base + static_cast<uint32_t>(((turn % STAGES) * PARTS + part) * 32 * 16);
  }
  // Floats in parts of 16 bytes from `part` on.
  template <int VEC>
  __device__ void Copy(int turn, int part, const float* from) const {
#pragma unroll
    for (int v = 0; v < VEC; v += 4) {
      Slot(turn, part + v / 4).Copy<4 * (VEC < 4 ? VEC : 4)>(from + v);
    }
  }
  // Columns of 16 bits; single ones are too small to be copied in the background.
  template <int VEC>
  __device__ void Copy(int turn, int part, const uint16_t* from) const {
    if constexpr (VEC == 1) {
      Slot(turn, part).Store(*from);
    } else {
      Slot(turn, part).Copy<2 * VEC>(from);
    }
  }
  // Ends the copies of a turn, and waits for those of kAhead turns ago.
  __device__ void Turn() const {
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group %0;" ::"n"(kAhead) : "memory");
  }
  template <int VEC>
  __device__ Piece<VEC> Read(int turn, int part) const {
    Piece<VEC> piece;
    if constexpr (VEC == 1) {
      piece.value[0] = Slot(turn, part).LoadFloat();
    } else {
#pragma unroll
      for (int v = 0; v < VEC; v += 4) piece.Set(v, Slot(turn, part + v / 4).LoadFour());
    }
    return piece;
  }
};

// Shared memory of a block's rings, and this lane's ring.
template <int THREADS, int STAGES, int PARTS>
struct RingMemory {
  float4 slots[THREADS / 32][STAGES][PARTS][32];

  __device__ float4* OfWarp() { return &slots[threadIdx.x / 32][0][0][0]; }
  __device__ Ring<STAGES, PARTS> Mine() {
    return {SharedAddress::Of(&slots[threadIdx.x / 32][0][0][Lane()])};
  }
};

}  // namespace dynemb
