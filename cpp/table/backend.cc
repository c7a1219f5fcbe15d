#include "table/backend.h"

namespace dynemb {
namespace {

Status NotHere() {
  return MakeStatus(StatusCode::kConfig,
                    "erase_if, clear and drain_evicted are not available on this device yet; run "
                    "with JAX_PLATFORMS=cpu.");
}

}  // namespace

Status Backend::Collect(const Executor&, TokenPair, const CollectBatch&) {
  return MakeStatus(StatusCode::kConfig,
                    "optimizers of optax are not available on this device yet; run with "
                    "JAX_PLATFORMS=cpu.");
}
Status Backend::EraseBelow(int32_t, int, uint64_t, int32_t*) { return NotHere(); }
Status Backend::Clear(int32_t, int, int32_t*) { return NotHere(); }
Status Backend::DrainEvicted(int, EvictedKeys*) { return NotHere(); }

}  // namespace dynemb
