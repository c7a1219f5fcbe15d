// Which absent keys of a batch are let in, and what is remembered of the others.
#pragma once

#include <cstdint>
#include <vector>

#include "core/admit.h"
#include "core/status.h"
#include "core/types.h"
#include "memory/growable_host_buffer.h"

namespace dynemb {

// An id whose key is not there.
struct Miss {
  int64_t id;  // among those of its table in the batch
  Key key;
};

// What was decided about one batch.
struct Admission {
  std::vector<int64_t> refused;  // ids, ascending
  std::vector<Key> keys;         // frequency: distinct absent keys,
  std::vector<uint64_t> ids;     // and how many ids each has in the batch
};

class Admitter {
 public:
  Admitter(const AdmissionRule& rule, int64_t num_counters)
      : rule_(rule), num_counters_(rule.kind == AdmissionKind::kFrequency ? num_counters : 0) {}

  // Memory for the counters, all 0.
  Status Init() { return counters_.Commit(num_counters_); }

  // Takes the ids that are refused out of `misses`. `lookup` is the number of the
  // table's training lookup. Remembers nothing.
  Admission Decide(uint64_t lookup, std::vector<Miss>* misses) const;

  // The batch has come to pass: its absent ids are counted.
  void Remember(Admission admission);

  // The ids that the last batch was refused: what a replay of it must be refused too,
  // although keys may be there by now.
  const std::vector<int64_t>& last_refused() const { return last_refused_; }

  // Counts start anew.
  void Forget();

  Bytes bytes() const { return num_counters_; }

 private:
  SketchView sketch() const {
    return {reinterpret_cast<uint8_t*>(counters_.data()),
            static_cast<uint64_t>(num_counters_) / kCountersPerBlock};
  }

  AdmissionRule rule_;
  int64_t num_counters_;
  GrowableHostBuffer counters_;
  int64_t counted_ = 0;  // ids since counters were halved
  std::vector<int64_t> last_refused_;
};

}  // namespace dynemb
