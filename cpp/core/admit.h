// Whether a key that is not there is let in. Decided per id, in the order of the ids of
// a batch: the first id that is admitted inserts its key, those before it are refused,
// those behind it are served. What a key that is there has cost plays no part.
//
// frequency    the id is the `threshold`-th of its key. Ids are counted in a sketch of
//              8-bit counters: blocks of 32, in four groups of eight; a key owns one
//              counter of each group of one block, and has been seen as often as the
//              least of the four says. So keys that collide in all four are seen too
//              often, never too seldom, until counters are halved.
//              G. Cormode, S. Muthukrishnan, "An improved data stream summary: the
//              count-min sketch and its applications", 2005; halving: G. Einziger,
//              R. Friedman, B. Manes, "TinyLFU", 2017.
// probability  a draw that depends on seed, table, key, lookup and the place of the id
//              among those of its key in the batch.
//
// All ids of a batch are judged by the counters before it, and added afterwards; sums
// that saturate do not depend on their order. So any number of threads decides alike.
#pragma once

#include <cstdint>

#include "core/annotations.h"
#include "core/hash.h"
#include "core/philox.h"
#include "core/types.h"

namespace dynemb {

// Mirrored by dynemb_jax.admission.
enum class AdmissionKind : int32_t { kAll = 0, kFrequency = 1, kProbability = 2 };

struct AdmissionRule {
  AdmissionKind kind;
  uint64_t threshold;  // frequency: of ids, at most kMaxCount
  uint64_t limit;      // probability: the largest draw of 64 bits that is admitted
  uint64_t stream;     // Philox key of the draws
};

inline constexpr uint64_t kMaxCount = 255;
inline constexpr int kSketchGroups = 4;
inline constexpr int kCountersPerGroup = 8;
inline constexpr int kCountersPerBlock = kSketchGroups * kCountersPerGroup;
// Counters are halved once they have counted a sixteenth of their number, twice for twice
// as many ids, and so on.
inline constexpr int64_t kCountersPerCountedId = 16;

struct SketchView {
  uint8_t* counters;    // [num_blocks][kSketchGroups][kCountersPerGroup]
  uint64_t num_blocks;  // a power of two
};

// Position of the counter of a key in a group.
DYNEMB_HD uint64_t CounterOf(const SketchView& sketch, Key key, int group) {
  // Mixed once more: keys that share a bucket of the index need not share counters.
  const uint64_t bits = Mix64(HashKey(key).bits);
  const uint64_t block = bits & (sketch.num_blocks - 1);
  const uint64_t within = (bits >> (52 + 3 * group)) & (kCountersPerGroup - 1);
  return block * kCountersPerBlock + static_cast<uint64_t>(group) * kCountersPerGroup + within;
}

// How often the key has been counted, at least.
DYNEMB_HD uint64_t SeenBefore(const SketchView& sketch, Key key) {
  uint64_t least = kMaxCount;
  for (int group = 0; group < kSketchGroups; ++group) {
    const uint64_t count = sketch.counters[CounterOf(sketch, key, group)];
    least = count < least ? count : least;
  }
  return least;
}

DYNEMB_HD uint8_t SaturatingSum(uint8_t counter, uint64_t ids) {
  const uint64_t room = kMaxCount - counter;
  return static_cast<uint8_t>(counter + (ids < room ? ids : room));
}

// How often counters are halved when so many ids have been counted since the last time.
// Then the count of ids starts at 0 again.
DYNEMB_HD int Halvings(int64_t counted, int64_t num_counters) {
  int halvings = 0;
  for (; counted >= num_counters / kCountersPerCountedId; counted /= 2) ++halvings;
  return halvings;
}

// One id of a key that is not there.
struct Applicant {
  Key key;
  uint64_t seen_before;  // frequency: SeenBefore when the batch came
  uint64_t lookup;       // training lookups of the table, this one included
  uint64_t occurrence;   // place among the ids of the key in the batch, from 1
};

DYNEMB_HD bool IsAdmitted(const AdmissionRule& rule, const Applicant& applicant) {
  switch (rule.kind) {
    case AdmissionKind::kAll:
      break;
    case AdmissionKind::kFrequency:
      return applicant.seen_before + applicant.occurrence >= rule.threshold;
    case AdmissionKind::kProbability: {
      const PhiloxBlock drawn = Philox4x32(
          {{static_cast<uint32_t>(applicant.key), static_cast<uint32_t>(applicant.key >> 32),
            static_cast<uint32_t>(applicant.lookup), static_cast<uint32_t>(applicant.occurrence)}},
          static_cast<uint32_t>(rule.stream), static_cast<uint32_t>(rule.stream >> 32));
      return (uint64_t{drawn.word[1]} << 32 | drawn.word[0]) <= rule.limit;
    }
  }
  return true;
}

}  // namespace dynemb
