// Bags of any lengths, one behind the other, and what their row splits have to be.
#pragma once

#include <cstdint>

#include "core/annotations.h"

namespace dynemb {

// Ids [begin, end) of a feature.
struct IdRange {
  int64_t begin;
  int64_t end;
};

// What may be wrong with a split: the first one of its group is not 0; it is less than the
// one before it; the last one is more than there are ids.
enum class SplitFault : int32_t { kNone = 0, kStart, kFalls, kBeyond };

// A wrong split.
struct WrongSplit {
  SplitFault fault;
  int32_t got, before;  // before: the one before it, where there is one
  int64_t position;     // among the splits of all groups
  int64_t capacity;     // ids of a group
};

// In a group of `capacity` ids, bag b is [splits[b], splits[b + 1]), and ids from the
// last split on are padding.
struct RowSplits {
  const int32_t* splits = nullptr;  // [num_groups, num_bags + 1]; null: there are none
  int64_t num_groups = 0;
  int64_t num_bags = 0;  // of a group
  int64_t capacity = 0;  // ids of a group

  DYNEMB_HD int64_t NumIds() const { return num_groups * capacity; }
  DYNEMB_HD int64_t NumSplits() const { return num_groups * (num_bags + 1); }
  DYNEMB_HD const int32_t* Group(int64_t group) const { return splits + group * (num_bags + 1); }
  // Position in its group at which the padding of a group begins.
  DYNEMB_HD int64_t Used(int64_t group) const { return Group(group)[num_bags]; }
  // Bags are counted through all groups.
  DYNEMB_HD IdRange Bag(int64_t bag) const {
    const int64_t group = bag / num_bags;
    const int32_t* split = Group(group) + bag % num_bags;
    return {group * capacity + split[0], group * capacity + split[1]};
  }

  // Of the split with which bag number `bag` of its group begins; the last one has no bag.
  DYNEMB_HD SplitFault FaultOf(const int32_t* split, int64_t bag) const {
    if (bag == 0 && split[0] != 0) return SplitFault::kStart;
    if (bag > 0 && split[0] < split[-1]) return SplitFault::kFalls;
    return bag == num_bags && split[0] > capacity ? SplitFault::kBeyond : SplitFault::kNone;
  }
  // Of that at a position, counted through all groups.
  DYNEMB_HD SplitFault FaultAt(int64_t position) const {
    return FaultOf(splits + position, position % (num_bags + 1));
  }
  DYNEMB_HD WrongSplit Wrong(int64_t position) const {
    const bool is_first = position % (num_bags + 1) == 0;
    return {FaultAt(position), splits[position], is_first ? 0 : splits[position - 1], position,
            capacity};
  }
};

}  // namespace dynemb
