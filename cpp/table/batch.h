// The operands of one call, as plain pointers into the caller's buffers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/row_splits.h"
#include "core/row_type.h"
#include "core/types.h"

namespace dynemb {

// How 64-bit keys lie in the input. Narrow integers are extended as their type
// says: int32 -1 is the key of all ones.
enum class KeyFormat : int32_t { kInt32 = 0, kUint32 = 1, kBits64 = 2 };

enum class Padding : int32_t { kNone = 0, kLengths = 1, kMask = 2, kSplits = 3 };

// One feature: `num_bags` bags of `bag_length` ids each. Not pooled: bag_length
// still is the last axis where lengths pad, 1 otherwise. With row_splits their
// bags and ids count, and bag_length is 1.
struct FeatureInput {
  int table;  // position in the group
  Combiner combiner;
  KeyFormat format;
  Padding padding;
  int64_t num_bags;
  int64_t bag_length;
  const void* keys;        // [num_bags, bag_length]
  const int32_t* lengths;  // [num_bags] or null
  const uint8_t* mask;     // [num_bags, bag_length] or null
  const float* weights;    // [num_bags, bag_length] or null
  // [num_bags, bag_length] or null: for a table of custom scores.
  const uint64_t* scores = nullptr;
  RowSplits row_splits = {};  // where padding is kSplits

  int64_t NumIds() const {
    return row_splits.splits == nullptr ? num_bags * bag_length : row_splits.NumIds();
  }
  int64_t NumOutputRows() const { return combiner == Combiner::kNone ? NumIds() : num_bags; }
  IdRange Bag(int64_t bag) const {
    if (row_splits.splits != nullptr) return row_splits.Bag(bag);
    return {bag * bag_length, (bag + 1) * bag_length};
  }
};

// Rows that a call returns or is given: floats, or 16 bits a column as its table keeps them.
struct RowsOutput {
  void* values;
  RowType type;
};
struct RowsInput {
  const void* values;
  RowType type;
};

struct FindBatch {
  std::span<const FeatureInput> features;
  std::span<const RowsOutput> rows;  // per feature: [NumOutputRows, dim]
};

// What lookup says of itself in its header output (int32).
enum HeaderField : int {
  // When the lookup was, each backend in a measure of its own: whether its rows may
  // have been given to other keys since.
  kHeaderGeneration = 0,
  kHeaderCounts = 1,  // number of unique rows, one a table looked up
};

// Where a lookup says who made way for its keys in one table.
struct EvictedOutput {
  int table;
  int64_t capacity;  // ids of the table
  Key* keys;         // [capacity]: in the order of their eviction, then zeros
  uint64_t* scores;  // [capacity]
  int32_t* count;    // [1]
};

// unique_rows of table t holds the row numbers in order of first occurrence,
// positions of `index` refer to it; kNoRow fills the rest.
struct LookupBatch {
  std::span<const FeatureInput> features;
  std::span<const RowsOutput> rows;             // per feature: [NumOutputRows, dim]
  std::span<int32_t* const> index;              // per feature: [NumIds]
  std::span<const int> tables;                  // tables looked up, ascending
  std::span<int64_t* const> unique_rows;        // per such table: [ids of the table]
  int32_t* header;                              // [kHeaderCounts + tables]
  std::span<const EvictedOutput> evicted = {};  // for tables that were asked
};

// Gradient of one looked-up feature.
struct FeatureGradient {
  int table;
  Combiner combiner;
  int64_t num_bags;
  int64_t bag_length;
  const int32_t* index;       // [num_bags, bag_length] from lookup
  const float* weights;       // as in lookup, or null
  RowsInput grads;            // [rows of the output, dim]
  RowSplits row_splits = {};  // as in lookup, where it was pooled by them

  int64_t NumIds() const {
    return row_splits.splits == nullptr ? num_bags * bag_length : row_splits.NumIds();
  }
  IdRange Bag(int64_t bag) const {
    if (row_splits.splits != nullptr) return row_splits.Bag(bag);
    return {bag * bag_length, (bag + 1) * bag_length};
  }
};

// What one lookup left for the update.
struct LookupResidual {
  std::vector<FeatureGradient> features;
  std::vector<int> tables;
  std::vector<const int64_t*> unique_rows;  // per table
  std::vector<int64_t> unique_capacity;     // elements behind each pointer
  const int32_t* header;
};

// Rows of a table whose optimizer runs outside of the engine, for it to move: first the
// unique rows of the lookups, then padding, for which there is any value.
struct CollectedRows {
  int table;
  int64_t capacity;             // at least the unique rows of the lookups together
  int64_t* unique_rows;         // [capacity], kNoRow where padded
  int32_t* count;               // [1]: not padded
  float* grads;                 // [capacity, dim], summed, clipped where the table says so
  float* rows;                  // [capacity, dim]
  std::vector<float*> vectors;  // per state vector: [capacity, dim]
  int32_t* scalars;             // [capacity, scalars], as bits
};

struct CollectBatch {
  std::span<const LookupResidual> lookups;
  std::span<const CollectedRows> tables;
};

// The same rows, moved.
struct MovedRows {
  int table;
  int64_t capacity;
  const int64_t* unique_rows;
  const int32_t* count;
  const float* rows;
  std::vector<const float*> vectors;
  const int32_t* scalars;
};

struct UpdateBatch {
  std::span<const LookupResidual> lookups;  // with the gradients of all other tables
  std::span<const MovedRows> moved;
  const float* learning_rates;  // [tables of the group]
  const int32_t* step;          // [1]: updates done before; < 0: the group's own count
};

// Keys of assign and erase come padded to a few fixed lengths.
struct KeyBatch {
  int table;
  const Key* keys;       // [capacity]
  const int32_t* count;  // [1]: so many of them, the first ones, are meant
  int64_t capacity;

  // On the host only.
  std::span<const Key> Meant() const {
    return {keys, static_cast<size_t>(std::clamp<int64_t>(*count, 0, capacity))};
  }
};

struct AssignBatch {
  KeyBatch keys;
  const float* rows;   // [capacity, dim]
  const float* state;  // [capacity, RowLayout::StateFloats] or null: initial state
};

// Keys that made way for others.
struct EvictedKey {
  Key key;
  uint64_t score;
};

struct EvictedKeys {
  std::vector<EvictedKey> keys;  // in the order of their eviction
  int64_t lost = 0;              // more of them than the table was asked to record
};

// Of a host call: all pointers are host memory.
struct GetBatch {
  int table;
  const Key* keys;  // [count]
  int64_t count;
  uint8_t* found;  // [count]
  float* rows;     // [count, dim]
  float* state;    // [count, RowLayout::StateFloats]
};

}  // namespace dynemb
