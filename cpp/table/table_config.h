// What the user asked a table to be, as the engine reads it.
#pragma once

#include <cstdint>
#include <string>

#include "core/optimizer/dispatch.h"
#include "core/row_init.h"
#include "core/row_layout.h"
#include "core/types.h"

namespace dynemb {

enum class OnFull : int32_t { kError = 0, kDrop = 1 };

struct TableConfig {
  std::string name;
  int dim = 0;
  OptimizerParameters optimizer{};
  RowInitializer initializer{};
  double max_load = 0.85;    // of the slots, before the index doubles
  int64_t initial_rows = 0;  // room made at creation
  Bytes max_bytes = -1;      // -1: no budget
  OnFull on_full = OnFull::kError;
  bool missing_is_initial = false;  // else the constant below
  float missing_value = 0.0f;
  bool trainable = true;

  RowLayout Layout() const {
    return DispatchRule(optimizer.kind, [&]<class Rule>() {
      return RowLayout{dim, Rule::kVectors, Rule::kScalars};
    });
  }
};

}  // namespace dynemb
