#include "cpu/cpu_backend.h"

#include <mutex>

namespace dynemb {

Status CpuBackend::Create(std::vector<TableConfig> configs, int32_t first_version,
                          std::shared_ptr<Backend>* backend) {
  std::shared_ptr<CpuBackend> created(new CpuBackend(std::move(configs)));
  for (const TableConfig& config : created->configs()) {
    created->tables_.push_back(std::make_unique<CpuTable>(config));
    DYNEMB_RETURN_IF_ERROR(created->tables_.back()->Init());
  }
  created->first_version_ = created->version_ = static_cast<uint32_t>(first_version);
  *backend = std::move(created);
  return Status();
}

Status CpuBackend::CheckToken(int32_t token) const {
  if (static_cast<uint32_t>(token) == version_) return Status();
  std::string names;
  for (const TableConfig& config : configs()) names += (names.empty() ? "" : ", ") + config.name;
  return StaleState("this Embeddings is not the current state of its tables (", names,
                    "): its token is ", token, ", the tables are at ",
                    static_cast<int32_t>(version_),
                    "; use the Embeddings that the last lookup, apply_gradients, assign or erase "
                    "returned, or call dynemb_jax.resync(emb) to go on from the tables as they "
                    "are.");
}

Status CpuBackend::CheckFindToken(int32_t token) const {
  const uint32_t age = static_cast<uint32_t>(token) - first_version_;
  return age <= version_ - first_version_ ? Status() : CheckToken(token);
}

Status CpuBackend::CheckLookupToken(int32_t token, uint64_t ids_checksum, bool* replay) const {
  *replay = static_cast<uint32_t>(token) + 1 == version_ && last_was_lookup_ &&
            ids_checksum == last_ids_checksum_;
  return *replay ? Status() : CheckToken(token);
}

void CpuBackend::Advance(TokenPair token) {
  *token.out = static_cast<int32_t>(++version_);
  last_was_lookup_ = false;
}

uint32_t CpuBackend::NextEpoch() {
  if (++epoch_ == 0) {  // after 2^32 passes: old stamps would look fresh
    for (const auto& table : tables_) table->ForgetClaims();
    outstanding_.clear();
    last_erase_epoch_ = 0;
    epoch_ = 1;
  }
  return epoch_;
}

uint32_t CpuBackend::NextLookup() {
  const uint32_t epoch = NextEpoch();
  const int64_t number = ++lookups_;
  // By age, not by how many wait: one whose update never comes would stay for ever
  // in front of lookups that are updated at once.
  const int64_t released = number - configs()[0].max_outstanding;
  std::erase_if(outstanding_, [&](const Outstanding& one) { return one.number <= released; });
  outstanding_.push_back({epoch, number});
  return epoch;
}

Status CpuBackend::CheckLookup(const LookupResidual& lookup) const {
  const uint32_t epoch = static_cast<uint32_t>(lookup.header[kHeaderGeneration]);
  if (epoch == 0 || epoch > epoch_ || epoch <= last_erase_epoch_) {
    return StaleActs();
  }
  for (int position : lookup.tables) {
    const CpuTable& table = *tables_[static_cast<size_t>(position)];
    if (table.last_evicted_epoch() < epoch) continue;
    return ReleasedLookup(table.config());
  }
  return Status();
}

Status CpuBackend::CountSteps(const Executor&, TokenPair token, int32_t* steps) {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  *steps = static_cast<int32_t>(steps_);
  *token.out = *token.in;
  return Status();
}

Status CpuBackend::Version(int32_t* version) {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  *version = static_cast<int32_t>(version_);
  return Status();
}

Status CpuBackend::Renew(int32_t* version) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  version_ += kRenewStep;
  last_was_lookup_ = false;
  *version = static_cast<int32_t>(version_);
  return Status();
}

Status CpuBackend::Stats(std::vector<TableStats>* stats) {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  for (const auto& table : tables_) stats->push_back(table->Stats());
  return Status();
}

}  // namespace dynemb
