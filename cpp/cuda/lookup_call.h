// A lookup as the host prepares it for its kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/admit_call.h"
#include "cuda/bounded_scratch.h"
#include "cuda/params.h"
#include "cuda/ragged_call.h"

namespace dynemb {

struct DeviceLookup {
  std::vector<FeatureList> lists;  // of at most kMaxFeatures each
  std::vector<uint32_t> blocks;    // of each list, one thread an id
  CallTables tables{};
  std::vector<int64_t> ids_of_table;  // per table of the call
  int64_t num_ids = 0;
  bool replayable = true;   // the last lookup may be repeated, nothing else
  int lookups = 0;          // that the call counts as
  uint64_t time = 0;        // nanoseconds since 1970
  bool is_bounded = false;  // any of its tables
  LookupScratch scratch{};
  BoundedScratch bounded{};
  GatedTables gated{};
  AdmitScratch admit{};
  RaggedCall ragged{};
};

}  // namespace dynemb
