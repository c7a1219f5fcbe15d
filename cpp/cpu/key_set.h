// Counts distinct keys. Every key value is legal, so 0, the mark of an empty
// slot, is kept beside the slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/hash.h"
#include "core/types.h"

namespace dynemb {

class KeySet {
 public:
  explicit KeySet(int64_t max_keys) {
    size_t slots = 16;
    while (slots < static_cast<size_t>(max_keys) * 2) slots *= 2;
    slots_.resize(slots, 0);
  }

  // True if the key is new to the set.
  bool Insert(Key key) {
    if (key == 0) {
      bool is_new = !has_zero_;
      has_zero_ = true;
      size_ += is_new;
      return is_new;
    }
    const size_t mask = slots_.size() - 1;
    // Mixed once more: keys that share an index bucket must not share slots here.
    for (size_t slot = Mix64(HashKey(key).bits) & mask;; slot = (slot + 1) & mask) {
      if (slots_[slot] == key) return false;
      if (slots_[slot] == 0) {
        slots_[slot] = key;
        ++size_;
        return true;
      }
    }
  }

  int64_t size() const { return size_; }

 private:
  std::vector<Key> slots_;
  bool has_zero_ = false;
  int64_t size_ = 0;
};

}  // namespace dynemb
