// core's InitRow with several columns at a time: the same bits, on the host.
#pragma once

#include "core/row_init.h"
#include "core/types.h"

namespace dynemb {

// Writes columns [0, dim) of the first value of `key`'s row.
void InitRowOnHost(const RowInitializer& init, Key key, int dim, float* row);

}  // namespace dynemb
