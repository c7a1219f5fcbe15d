// Forgets many keys at once, and tells which ones had to go: host calls.
#include <mutex>
#include <utility>

#include "cpu/cpu_backend.h"

namespace dynemb {

Status CpuBackend::EraseBelow(int32_t from, int position, uint64_t score, int32_t* to) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  DYNEMB_RETURN_IF_ERROR(CheckToken(from));
  CpuTable& target = table(position);
  const int64_t erased = target.EraseBelow(score);
  target.counters.erased += erased;
  if (erased > 0) ForgetLookups();
  Advance({&from, to});
  return Status();
}

Status CpuBackend::Clear(int32_t from, int position, int32_t* to) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  DYNEMB_RETURN_IF_ERROR(CheckToken(from));
  CpuTable& target = table(position);
  const int64_t erased = target.pool().size();
  target.EraseAll();
  target.counters.erased += erased;
  if (erased > 0) ForgetLookups();
  Advance({&from, to});
  return Status();
}

Status CpuBackend::DrainEvicted(int position, EvictedKeys* evicted) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  *evicted = std::exchange(table(position).evicted(), EvictedKeys{});
  return Status();
}

}  // namespace dynemb
