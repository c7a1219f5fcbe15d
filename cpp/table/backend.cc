#include "table/backend.h"

namespace dynemb {

Status StaleActs() {
  return StaleState(
      "apply_gradients: keys were erased, or shrink was called, after these acts were looked up: "
      "their rows may belong to other keys now; look up again.");
}

Status ReleasedLookup(const TableConfig& config) {
  return MakeStatus(
      StatusCode::kTooManyOutstanding, "apply_gradients: table '", config.name,
      "' no longer keeps rows for these acts, and has evicted some since that may be theirs: the "
      "max_outstanding=",
      config.max_outstanding,
      " latest lookups may wait for their update, and these acts are older or were applied before; "
      "apply them sooner, or raise max_outstanding in dynemb_jax.create.");
}

Status WrongRowSplits(const WrongSplit& wrong) {
  const char* const bags = "; pass where each bag begins, and at last where the ids end.";
  switch (wrong.fault) {
    case SplitFault::kNone:
      break;
    case SplitFault::kStart:
      return InvalidArgument("row_splits of Ragged must start at 0, got ", wrong.got,
                             " at flat position ", wrong.position, bags);
    case SplitFault::kFalls:
      return InvalidArgument("row_splits of Ragged must not decrease, got ", wrong.got, " behind ",
                             wrong.before, " at flat position ", wrong.position, bags);
    case SplitFault::kBeyond:
      return InvalidArgument("row_splits of Ragged must end within its ids, of which there are ",
                             wrong.capacity, ", got ", wrong.got, " at flat position ",
                             wrong.position, "; pass more ids or fewer bags.");
  }
  return Status();
}

Status WrongMovedRows(const TableConfig& config) {
  return InvalidArgument("apply_gradients: what moved of table '", config.name,
                         "' is not what was collected; reinstall dynemb_jax.");
}

}  // namespace dynemb
