// What happened to a table since it was created. Ids count with their
// duplicates; rows do not.
#pragma once

#include <cstdint>

namespace dynemb {

// ids = hits + inserted + refused.
struct TableCounters {
  int64_t lookups = 0;         // training lookups
  int64_t ids = 0;             // ids of training lookups, padding left out
  int64_t hits = 0;            // key present, or new earlier in the same batch
  int64_t inserted = 0;        // first occurrence of a new key
  int64_t refused_budget = 0;  // no room within max_bytes under on_full="drop"
  int64_t padded = 0;          // padding positions, any lookup
  int64_t found = 0;           // ids of train=False lookups: key present
  int64_t missing = 0;         // ... key absent
  int64_t updates = 0;         // apply_gradients calls
  int64_t updated_rows = 0;
  int64_t assigned = 0;
  int64_t assign_refused = 0;  // rows of assign for which no room was to be had
  int64_t erased = 0;
  int64_t waits = 0;              // times the device may have stood still for the host to make room
  int64_t growths = 0;            // doublings of the index
  int64_t rows_copied = 0;        // rows moved by growth; stays 0 by design
  int64_t refused_pinned = 0;     // on_full="evict": no entry that may go
  int64_t evicted = 0;            // keys that made way for new ones
  int64_t expired = 0;            // keys that nobody touched for longer than they may live
  int64_t refused_admission = 0;  // ids of absent keys that were not let in
};

}  // namespace dynemb
