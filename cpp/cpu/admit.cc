#include "cpu/admit.h"

#include <algorithm>
#include <span>
#include <utility>

#include "cpu/key_numbers.h"

namespace dynemb {

Admission Admitter::Decide(uint64_t lookup, std::vector<Miss>* misses) const {
  Admission admission;
  if (rule_.kind == AdmissionKind::kAll || misses->empty()) return admission;
  const bool counts = rule_.kind == AdmissionKind::kFrequency;
  KeyNumbers numbers(std::ssize(*misses));
  std::vector<uint64_t> seen_before;
  std::vector<bool> admitted;
  size_t kept = 0;
  for (const Miss& miss : *misses) {
    const size_t number = numbers.Number(miss.key);
    if (number == admission.ids.size()) {
      admission.ids.push_back(0);
      admitted.push_back(false);
      if (counts) seen_before.push_back(SeenBefore(sketch(), miss.key));
    }
    const uint64_t occurrence = ++admission.ids[number];
    const uint64_t before = counts ? seen_before[number] : 0;
    if (!admitted[number]) {
      admitted[number] = IsAdmitted(rule_, {miss.key, before, lookup, occurrence});
    }
    if (admitted[number]) {
      (*misses)[kept++] = miss;
    } else {
      admission.refused.push_back(miss.id);
    }
  }
  misses->resize(kept);
  admission.keys = numbers.keys();
  return admission;
}

void Admitter::Remember(Admission admission) {
  last_refused_ = std::move(admission.refused);
  if (rule_.kind != AdmissionKind::kFrequency) return;
  for (size_t i = 0; i < admission.keys.size(); ++i) {
    for (int group = 0; group < kSketchGroups; ++group) {
      uint8_t& counter = sketch().counters[CounterOf(sketch(), admission.keys[i], group)];
      counter = SaturatingSum(counter, admission.ids[i]);
    }
    counted_ += static_cast<int64_t>(admission.ids[i]);
  }
  const int halvings = Halvings(counted_, num_counters_);
  if (halvings == 0) return;
  for (uint8_t& counter : std::span(sketch().counters, static_cast<size_t>(num_counters_))) {
    counter = static_cast<uint8_t>(halvings < 8 ? counter >> halvings : 0);
  }
  counted_ = 0;
}

void Admitter::Forget() {
  std::fill_n(sketch().counters, num_counters_, uint8_t{0});
  counted_ = 0;
}

}  // namespace dynemb
