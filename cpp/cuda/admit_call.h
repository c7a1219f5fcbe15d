// Scratch of a lookup whose absent keys ask for admission.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/params.h"

namespace dynemb {

// The tables of a call that have an admission rule. Ids of all of them are sorted
// together: those of a table lie side by side, at `first_place`.
template <size_t N>
struct GatedTablesOf {
  int64_t first_id[N];     // among all ids of the call
  int64_t first_place[N];  // among those that are sorted
  int32_t table[N];        // position in the group
  int32_t call_table[N];   // position among the tables of the call
  int count;
  int64_t num_ids;  // of these tables
};
using GatedTables = GatedTablesOf<kMaxCallTables>;

// Calls body(tables) in the smallest size that holds them.
template <class Body>
void WithFewGated(const GatedTables& tables, Body&& body) {
  if (tables.count > kFewTables) {
    body(tables);
    return;
  }
  GatedTablesOf<kFewTables> few{};
  few.count = tables.count;
  few.num_ids = tables.num_ids;
  for (int i = 0; i < tables.count; ++i) {
    few.first_id[i] = tables.first_id[i];
    few.first_place[i] = tables.first_place[i];
    few.table[i] = tables.table[i];
    few.call_table[i] = tables.call_table[i];
  }
  body(few);
}

// Ids without a row by the id that was elected for their key, equal ones in their order.
struct AdmitScratch {
  uint32_t* elected;         // [num_ids of the gated tables], not_asking: it does not ask
  uint32_t* ids;             // [the same]
  uint32_t* sorted_elected;  // [the same], sorted
  uint32_t* sorted_ids;      // [the same]
  uint32_t* first_place;     // [ids of the call], by elected id: where its run begins
  uint32_t* admitted_place;  // [ids of the call], by elected id: the first that is let in
  uint8_t* was_refused;      // [ids of the call]: by the last lookup, for its replay
  uint32_t not_asking;       // more than any id
  void* sort;                // scratch of the sort
  size_t sort_bytes;
};

inline constexpr uint32_t kNobodyAdmitted = 0xFFFFFFFF;

}  // namespace dynemb
