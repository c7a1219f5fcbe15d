#include "table/backend.h"

namespace dynemb {

Status ReleasedLookup(const TableConfig& config) {
  return MakeStatus(
      StatusCode::kTooManyOutstanding, "apply_gradients: table '", config.name,
      "' no longer keeps rows for these acts, and has evicted some since that may be theirs: the "
      "max_outstanding=",
      config.max_outstanding,
      " latest lookups may wait for their update, and these acts are older or were applied before; "
      "apply them sooner, or raise max_outstanding in dynemb_jax.create.");
}

Status Backend::Collect(const Executor&, TokenPair, const CollectBatch&) {
  return MakeStatus(StatusCode::kConfig,
                    "optimizers of optax are not available on this device yet; run with "
                    "JAX_PLATFORMS=cpu.");
}

}  // namespace dynemb
