// The index of a table without its rows: found keys end at a row number.
#pragma once

#include <cstdint>

#include "core/types.h"
#include "cuda/cuda_table.h"
#include "device.h"

namespace dynemb::bench {

class BareIndex {
 public:
  // Holds keys number [0, keys), key i with row i.
  BareIndex(Device& device, uint64_t num_buckets, int64_t keys);
  ~BareIndex();

  // rows: [n], -1 where the key is absent. One thread a key.
  void FindRows(const Key* keys, int64_t n, int64_t* rows);
  void Double();

 private:
  Device& device_;
  CudaTable table_;
  DeviceArray<TableView> view_;
};

// Fills keys [n] of a repetition, drawn without replacement from the first `held` key
// numbers in random order: number `first` of that order and the ones after it. With
// `half`, every other key is instead one that no table holds, numbered from `absent`.
struct Draw {
  int64_t held;
  int64_t first;
  bool half;
  uint64_t absent;
};
void DrawKeys(Device& device, const Draw& draw, int64_t n, Key* keys);
// Keys number [first, first + n) in that order.
void NumberedKeys(Device& device, uint64_t first, int64_t n, Key* keys);

// Throws unless rows [n] of a draw name the rows of a BareIndex, and half are -1.
void CheckRows(Device& device, const Draw& draw, int64_t n, const int64_t* rows);

}  // namespace dynemb::bench
