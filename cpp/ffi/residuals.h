// Operands that collect and update share: what lookups left, with gradients.
#pragma once

#include <vector>

#include "ffi/frame.h"

namespace dynemb {

// plan:     [lookups, per lookup: tables, table ..., features, per feature:
//            table, combiner, weighted, ragged]
// operands: per lookup: header, per table unique_rows, per feature index, row splits
//           where it was pooled by them, grads and, where there are any, weights
Status ReadResiduals(const Backend& backend, PlanCursor& plan, ArgCursor& args,
                     std::vector<LookupResidual>* lookups);

// plan: [table], one whose optimizer runs outside of the engine
Status ReadOutsideTable(const Backend& backend, PlanCursor& plan, int* table);

}  // namespace dynemb
