// Small device functions that several kernels share.
#pragma once

#include <cstdint>

#include "core/bucket.h"
#include "core/hash.h"
#include "core/probe.h"
#include "core/types.h"
#include "cuda/params.h"
#include "table/batch.h"

namespace dynemb {

inline constexpr int kThreads = 256;
inline constexpr unsigned kFullWarp = 0xFFFFFFFFu;

// Blocks of kThreads for so many threads.
inline unsigned Blocks(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

__device__ inline int Lane() { return static_cast<int>(threadIdx.x & 31u); }

// Tags of one bucket in registers: one 32-byte sector, read at once.
struct LoadedSector {
  uint32_t word[8];

  __device__ explicit LoadedSector(const TagSector* sector)
      : LoadedSector(reinterpret_cast<const uint4*>(sector)[0],
                     reinterpret_cast<const uint4*>(sector)[1]) {}
  // Past the first-level cache: what other blocks have written meanwhile shows.
  __device__ static LoadedSector Fresh(const TagSector* sector) {
    const uint4* halves = reinterpret_cast<const uint4*>(sector);
    return LoadedSector(__ldcg(halves), __ldcg(halves + 1));
  }
  __device__ LoadedSector(uint4 a, uint4 b) {
    word[0] = a.x;
    word[1] = a.y;
    word[2] = a.z;
    word[3] = a.w;
    word[4] = b.x;
    word[5] = b.y;
    word[6] = b.z;
    word[7] = b.w;
  }
  __device__ uint32_t Match(uint8_t tag) const {
    const uint32_t wanted = tag * 0x01010101u;
    uint32_t mask = 0;
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      // One bit a byte: gather bits 0, 8, 16, 24 into a nibble.
      const uint32_t equal = __vcmpeq4(word[w], wanted) & 0x01010101u;
      mask |= ((equal * 0x10204080u) >> 28) << (4 * w);
    }
    return mask & kSlotMask;
  }
  // The first empty slot and its word; -1 if there is none. Written without an index
  // into `word`, which would move it to memory.
  __device__ int FirstEmpty(uint32_t* its_word) const {
    int slot = -1;
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      const uint32_t empty = __vcmpeq4(word[w], 0) & (w == 7 ? 0x00010101u : 0x01010101u);
      if (slot < 0 && empty != 0) {
        slot = 4 * w + (__ffs(static_cast<int>(empty)) - 1) / 8;
        *its_word = word[w];
      }
    }
    return slot;
  }
  __device__ bool Overflowed() const { return (word[7] >> 24 & kOverflowMark) != 0; }
};

__device__ inline Entry LoadEntry(const Entry* entry) {
  const ulonglong2 both = *reinterpret_cast<const ulonglong2*>(entry);
  return Entry{both.x, both.y};
}

// Where a key lies; row -1: nowhere.
struct FoundEntry {
  int64_t row;
  SlotRef at;
};

__device__ inline FoundEntry FindOnDevice(const IndexView& view, KeyHash hash, Key key) {
  for (ProbePath path(hash, view.num_buckets); !path.Exhausted(); path.Advance()) {
    const LoadedSector sector(&view.Sector(path.bucket()));
    uint32_t candidates = sector.Match(hash.Tag());
    // Two at a time: in a half full table one key in twenty has a second candidate, and
    // its whole warp would wait for one read more.
    while (candidates != 0) {
      const int one = LowestBit(candidates);
      candidates &= candidates - 1;
      const int other = candidates != 0 ? LowestBit(candidates) : one;
      candidates &= candidates - 1;
      const Entry first = LoadEntry(&view.EntryAt({path.bucket(), one}));
      Entry second = first;
      if (other != one) second = LoadEntry(&view.EntryAt({path.bucket(), other}));
      if (first.key == key) return {static_cast<int64_t>(first.Row()), {path.bucket(), one}};
      if (second.key == key) return {static_cast<int64_t>(second.Row()), {path.bucket(), other}};
    }
    if (!sector.Overflowed()) break;
  }
  return {-1, {BucketIndex{0}, -1}};
}

__device__ inline int64_t FindRowOnDevice(const IndexView& view, KeyHash hash, Key key) {
  return FindOnDevice(view, hash, key).row;
}

// Takes an empty slot of the bucket for `tag`; -1 if there is none. Several
// threads may compete; nobody reads entries meanwhile.
__device__ inline int ClaimSlot(TagSector* sector, uint8_t tag) {
  unsigned* words = reinterpret_cast<unsigned*>(sector);
  for (;;) {
    uint32_t old = 0;
    const int slot = LoadedSector::Fresh(sector).FirstEmpty(&old);
    if (slot < 0) return -1;
    const unsigned taken = old | static_cast<unsigned>(tag) << (8 * (slot & 3));
    if (atomicCAS(&words[slot >> 2], old, taken) == old) return slot;
  }
}

// Places an entry whose key is absent, in the first bucket of its path with room.
__device__ inline SlotRef PlaceAbsentOnDevice(const IndexView& view, const Entry& entry) {
  const KeyHash hash = HashKey(entry.key);
  for (ProbePath path(hash, view.num_buckets); !path.Exhausted(); path.Advance()) {
    TagSector* sector = &view.Sector(path.bucket());
    const int slot = ClaimSlot(sector, hash.Tag());
    if (slot >= 0) {
      *reinterpret_cast<ulonglong2*>(&view.EntryAt({path.bucket(), slot})) =
          make_ulonglong2(entry.key, entry.row_and_spare);
      return {path.bucket(), slot};
    }
    atomicOr(reinterpret_cast<unsigned*>(sector) + 7, unsigned{kOverflowMark} << 24);
  }
  return {BucketIndex{0}, -1};  // a table without one free slot: room is made before
}

__device__ inline Key LoadKeyOnDevice(const FeatureParam& feature, int64_t id) {
  switch (feature.format) {
    case KeyFormat::kInt32:
      return static_cast<Key>(static_cast<int64_t>(static_cast<const int32_t*>(feature.keys)[id]));
    case KeyFormat::kUint32:
      return static_cast<const uint32_t*>(feature.keys)[id];
    case KeyFormat::kBits64:
      break;
  }
  return static_cast<const uint64_t*>(feature.keys)[id];
}

// has_splits: a feature may have row splits.
template <bool has_splits>
__device__ bool IsMeant(const FeatureParam& feature, int64_t id) {
  switch (feature.padding) {
    case Padding::kLengths:
      return id % feature.bag_length < feature.lengths[id / feature.bag_length];
    case Padding::kMask:
      return feature.mask[id] != 0;
    case Padding::kSplits:
      if constexpr (has_splits) {
        const int64_t splits_to_here = (id / feature.bag_length + 1) * (feature.group_bags + 1);
        return id % feature.bag_length < feature.row_splits[splits_to_here - 1];
      }
      break;
    case Padding::kNone:
      break;
  }
  return true;
}

// Feature of a block: features own consecutive blocks.
// list.features: of a lookup, or gradients of an update.
template <class List>
__device__ const auto& FeatureOfBlock(const List& list, uint32_t block) {
  int low = 0, high = list.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (list.features[middle].first_block <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return list.features[low];
}
template <class List>
__device__ const auto& FeatureOfBlock(const List& list) {
  return FeatureOfBlock(list, blockIdx.x);
}

// Sum over the warp, in all lanes.
template <class T>
__device__ T WarpSum(T value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kFullWarp, value, offset);
  }
  return value;
}

// Positions for the lanes that want one, from a counter of the block.
__device__ inline uint32_t WarpAllocate(bool wanted, uint32_t* counter) {
  const unsigned mask = __ballot_sync(kFullWarp, wanted);
  uint32_t position = 0;
  if (mask != 0 && Lane() == 0) position = atomicAdd(counter, static_cast<uint32_t>(__popc(mask)));
  return __shfl_sync(kFullWarp, position, 0) +
         static_cast<uint32_t>(__popc(mask & ((1u << Lane()) - 1)));
}

}  // namespace dynemb
