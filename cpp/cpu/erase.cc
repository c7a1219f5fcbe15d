// Forgets keys. Their rows return to the pool; the same keys start afresh later.
#include <mutex>

#include "cpu/cpu_backend.h"

namespace dynemb {

Status CpuBackend::Erase(const Executor&, TokenPair token, const KeyBatch& batch) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  DYNEMB_RETURN_IF_ERROR(CheckToken(*token.in));
  CpuTable& target = table(batch.table);
  int64_t erased = 0;
  for (Key key : batch.Meant()) erased += target.Erase(key);
  target.counters.erased += erased;
  if (erased > 0) ForgetLookups();
  Advance(token);
  return Status();
}

}  // namespace dynemb
