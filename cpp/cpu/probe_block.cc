#include "cpu/probe_block.h"

#include <algorithm>

#include "core/probe.h"
#include "table/backend.h"

namespace dynemb {
namespace {

void LoadKeys(const FeatureInput& feature, int64_t begin, int count, Key* keys) {
  switch (feature.format) {
    case KeyFormat::kInt32:
      for (int i = 0; i < count; ++i) {
        keys[i] = static_cast<Key>(
            static_cast<int64_t>(static_cast<const int32_t*>(feature.keys)[begin + i]));
      }
      break;
    case KeyFormat::kUint32:
      for (int i = 0; i < count; ++i) {
        keys[i] = static_cast<const uint32_t*>(feature.keys)[begin + i];
      }
      break;
    case KeyFormat::kBits64:  // (lo, hi) pairs of uint32 are 64-bit little endian
      for (int i = 0; i < count; ++i) {
        keys[i] = static_cast<const uint64_t*>(feature.keys)[begin + i];
      }
      break;
  }
}

// meant[i]: whether id begin + i is no padding.
void MarkMeant(const FeatureInput& feature, int64_t begin, int count, bool* meant) {
  switch (feature.padding) {
    case Padding::kNone:
      std::fill_n(meant, count, true);
      return;
    case Padding::kMask:
      for (int i = 0; i < count; ++i) meant[i] = feature.mask[begin + i] != 0;
      return;
    case Padding::kLengths:
    case Padding::kSplits:
      break;
  }
  // Each run of so many ids begins with those that are meant.
  const bool by_length = feature.padding == Padding::kLengths;
  const int64_t run_length = by_length ? feature.bag_length : feature.row_splits.capacity;
  int64_t run = begin / run_length, position = begin % run_length;
  for (int i = 0; i < count; ++i) {
    meant[i] = position < (by_length ? feature.lengths[run] : feature.row_splits.Used(run));
    if (++position == run_length) {
      position = 0;
      ++run;
    }
  }
}

}  // namespace

Key LoadKey(const FeatureInput& feature, int64_t id) {
  Key key = 0;
  LoadKeys(feature, id, 1, &key);
  return key;
}

Status CheckRowSplits(const RowSplits& row_splits) {
  for (int64_t group = 0; group < row_splits.num_groups; ++group) {
    const int32_t* split = row_splits.Group(group);
    for (int64_t bag = 0; bag <= row_splits.num_bags; ++bag) {
      if (row_splits.FaultOf(split + bag, bag) == SplitFault::kNone) continue;
      return WrongRowSplits(row_splits.Wrong(split + bag - row_splits.splits));
    }
  }
  return Status();
}

Status CheckBags(const FeatureInput& feature) {
  if (feature.padding == Padding::kSplits) return CheckRowSplits(feature.row_splits);
  if (feature.padding != Padding::kLengths) return Status();
  for (int64_t bag = 0; bag < feature.num_bags; ++bag) {
    int32_t length = feature.lengths[bag];
    if (length < 0 || length > feature.bag_length) {
      return InvalidArgument("lengths of Padded must lie in [0, ", feature.bag_length,
                             "], the last axis of its ids; got ", length, " at flat position ", bag,
                             "; pass the number of ids that are meant.");
    }
  }
  return Status();
}

uint64_t ProbeBlock(const IndexView& index, const FeatureInput& feature, int64_t begin, int count,
                    int64_t* rows) {
  Key keys[kBlock];
  KeyHash hashes[kBlock];
  bool valid[kBlock];
  LoadKeys(feature, begin, count, keys);
  MarkMeant(feature, begin, count, valid);

  // Three sweeps: each one asks memory for what the next one reads.
  uint64_t checksum = 0;
  for (int i = 0; i < count; ++i) {
    hashes[i] = HashKey(keys[i]);
    __builtin_prefetch(&index.Sector(hashes[i].Home(index.num_buckets)));
    uint64_t place = static_cast<uint64_t>(begin + i) * 0x9E3779B97F4A7C15ull;
    checksum += valid[i] ? Mix64(hashes[i].bits + place) : place;
  }
  for (int i = 0; i < count; ++i) {
    BucketIndex home = hashes[i].Home(index.num_buckets);
    if (uint32_t candidates = index.Sector(home).Match(hashes[i].Tag())) {
      __builtin_prefetch(&index.EntryAt({home, LowestBit(candidates)}));
    }
  }
  for (int i = 0; i < count; ++i) {
    if (!valid[i]) {
      rows[i] = kRowPadded;
      continue;
    }
    RowIndex row = FindRow(index, hashes[i], keys[i]);
    rows[i] = row == kNoRow ? kRowMissing : static_cast<int64_t>(row);
  }
  return checksum;
}

}  // namespace dynemb
