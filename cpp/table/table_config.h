// What the user asked a table to be, as the engine reads it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/admit.h"
#include "core/optimizer/dispatch.h"
#include "core/row_init.h"
#include "core/row_layout.h"
#include "core/score.h"
#include "core/types.h"

namespace dynemb {

// What a time to live is measured in. Mirrored by dynemb_jax.eviction.
enum class TtlClock : int32_t {
  kNone = 0,
  kLookups = 1,      // the table's training lookups
  kNanoseconds = 2,  // since 1970
};

enum class OnFull : int32_t { kError = 0, kDrop = 1, kEvict = 2 };

// State of an optimizer that runs outside of the engine, in dynemb_jax: its first values.
struct OutsideState {
  std::vector<float> vectors;    // per state vector, of all its columns
  std::vector<int32_t> scalars;  // per number of a row, as bits
};

struct TableConfig {
  std::string name;
  int dim = 0;
  RowType row_type = RowType::kFloat32;
  bool stochastic_rounding = false;  // of what updates write to 16-bit rows
  OptimizerParameters optimizer{};
  std::optional<OutsideState> outside;  // in place of optimizer.kind
  RowInitializer initializer{};
  double max_load = 0.85;    // of the slots, before the index doubles
  int64_t initial_rows = 0;  // room made at creation
  Bytes max_bytes = -1;      // -1: no budget
  int64_t max_rows = -1;     // -1: as many as max_bytes allows
  OnFull on_full = OnFull::kError;
  bool missing_is_initial = false;  // else the constant below
  float missing_value = 0.0f;
  bool trainable = true;
  ScoreKind score = ScoreKind::kNone;  // any other: the table is bounded
  int64_t half_life = 1;               // of a decayed score, in training lookups
  TtlClock ttl_clock = TtlClock::kNone;
  int64_t ttl = 0;                 // by that clock: untouched rows go when they are older
  AdmissionRule admission{};       // who is let in; by default everyone
  int64_t admission_counters = 0;  // a multiple of kCountersPerBlock by a power of two
  int64_t recorded_evictions = 0;  // kept for drain_evicted, at most
  int64_t max_outstanding = 4;     // latest lookups of the group that may pin rows
  bool deterministic = false;      // the group's batches give the same bits in every run

  // Whether the score of a row is its last touch by the clock of its time to live.
  bool ScoreTellsAge() const {
    return (ttl_clock == TtlClock::kLookups && score == ScoreKind::kStep) ||
           (ttl_clock == TtlClock::kNanoseconds && score == ScoreKind::kTime);
  }
  // Whether rows have a word for their last touch.
  bool StoresTouches() const { return ttl_clock != TtlClock::kNone && !ScoreTellsAge(); }

  RowLayout Layout() const {
    const bool keeps_key = row_type != RowType::kFloat32 && stochastic_rounding;
    if (outside.has_value()) {
      return {dim, static_cast<int>(outside->vectors.size()),
              static_cast<int>(outside->scalars.size()), row_type, keeps_key};
    }
    return DispatchRule(optimizer.kind, [&]<class Rule>() {
      return RowLayout{dim, Rule::kVectors, Rule::kScalars, row_type, keeps_key};
    });
  }
};

}  // namespace dynemb
