// Where a verb runs.
#pragma once

#include "core/types.h"

namespace dynemb {

// Of one call, by reference. The host needs neither field.
struct Executor {
  void* stream = nullptr;  // cudaStream_t: work is enqueued there, in order

  // Memory of this call alone, freed in stream order when the call returns; null
  // when there is none.
  void* (*allocate)(void* allocator, Bytes bytes) = nullptr;
  void* allocator = nullptr;
};

}  // namespace dynemb
