// Memory that a table reuses from call to call.
#pragma once

#include <cstdint>
#include <memory>

namespace dynemb {

// Uninitialised array that only grows: fresh pages cost more than the work that
// batches do in them. Not thread-safe.
template <class T>
class Scratch {
 public:
  // At least `count` elements; their content is whatever it was.
  T* Get(int64_t count) {
    if (count > capacity_) {
      capacity_ = count + count / 4;
      data_ = std::make_unique_for_overwrite<T[]>(static_cast<size_t>(capacity_));
    }
    return data_.get();
  }

 private:
  std::unique_ptr<T[]> data_;
  int64_t capacity_ = 0;
};

}  // namespace dynemb
