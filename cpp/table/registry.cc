#include "table/registry.h"

#include <limits>
#include <vector>

namespace dynemb {

Registry& Registry::Global() {
  // Never destroyed: programs may still be in flight when the process exits.
  static Registry* registry = new Registry;
  return *registry;
}

void Registry::Add(int64_t group, int32_t device, std::shared_ptr<Backend> backend) {
  std::lock_guard<std::mutex> lock(mutex_);
  backends_[{group, device}] = std::move(backend);
}

void Registry::Remove(int64_t group) {
  // Freed after the lock is gone: unmapping gigabytes takes a while.
  std::vector<std::shared_ptr<Backend>> removed;
  std::lock_guard<std::mutex> lock(mutex_);
  auto begin = backends_.lower_bound({group, std::numeric_limits<int32_t>::min()});
  auto end = begin;
  while (end != backends_.end() && end->first.first == group) {
    removed.push_back(std::move(end->second));
    ++end;
  }
  backends_.erase(begin, end);
}

Status Registry::Find(int64_t group, int32_t device, std::shared_ptr<Backend>* backend) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = backends_.find({group, device});
  if (found != backends_.end()) {
    *backend = found->second;
    return Status();
  }
  auto other = backends_.lower_bound({group, std::numeric_limits<int32_t>::min()});
  if (other != backends_.end() && other->first.first == group) {
    return MakeStatus(StatusCode::kWrongDevice, "these tables live on device ", other->first.second,
                      ", the program runs on device ", device,
                      "; put the program on the tables' device.");
  }
  return MakeStatus(StatusCode::kClosed,
                    "the tables of this program are closed or were made in another process; "
                    "call dynemb_jax.create again and pass its Embeddings.");
}

}  // namespace dynemb
