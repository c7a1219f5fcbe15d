// Numbers distinct keys in the order in which they come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/hash.h"
#include "core/types.h"

namespace dynemb {

class KeyNumbers {
 public:
  explicit KeyNumbers(int64_t max_keys) {
    size_t slots = 16;
    while (slots < static_cast<size_t>(max_keys) * 2) slots *= 2;
    slots_.resize(slots, kEmpty);
  }

  // The number of the key, from 0; the next one if it is new.
  size_t Number(Key key) {
    const size_t mask = slots_.size() - 1;
    // Mixed once more: keys that share an index bucket must not share slots here.
    for (size_t slot = Mix64(HashKey(key).bits) & mask;; slot = (slot + 1) & mask) {
      if (slots_[slot] == kEmpty) {
        slots_[slot] = static_cast<uint32_t>(keys_.size());
        keys_.push_back(key);
        return keys_.size() - 1;
      }
      if (keys_[slots_[slot]] == key) return slots_[slot];
    }
  }

  const std::vector<Key>& keys() const { return keys_; }

 private:
  static constexpr uint32_t kEmpty = 0xFFFFFFFF;  // a batch has fewer ids

  std::vector<uint32_t> slots_;
  std::vector<Key> keys_;
};

}  // namespace dynemb
