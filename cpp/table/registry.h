// From the numbers that a compiled program carries to the live group.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "core/status.h"
#include "table/backend.h"

namespace dynemb {

// The only global of the engine. A compiled program names its group by id, so a
// cached executable of another process finds the group of this one.
class Registry {
 public:
  static Registry& Global();

  void Add(int64_t group, int32_t device, std::shared_ptr<Backend> backend);
  void Remove(int64_t group);
  // The caller's copy keeps the group alive while it works on it.
  Status Find(int64_t group, int32_t device, std::shared_ptr<Backend>* backend);

 private:
  std::mutex mutex_;
  // Ordinals are sparse in multi-process runs: a map, never an array.
  std::map<std::pair<int64_t, int32_t>, std::shared_ptr<Backend>> backends_;
};

}  // namespace dynemb
