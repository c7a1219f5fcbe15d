#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/cuda_backend.h"
#include "cuda/device_ops.cuh"
#include "memory/cuda_check.h"

namespace dynemb {
namespace {

Bytes RoundUp(Bytes bytes) { return (bytes + 255) / 256 * 256; }

// First values of a row behind its embedding, where a rule outside of the engine has them.
std::vector<float> FirstState(const TableConfig& config) {
  if (!config.outside.has_value()) return {};
  const RowLayout layout = config.Layout();
  std::vector<float> row(static_cast<size_t>(layout.StrideFloats()), 0.0f);
  for (int v = 0; v < layout.vectors; ++v) {
    std::fill_n(row.data() + layout.VectorOffset(v), layout.dim,
                config.outside->vectors[static_cast<size_t>(v)]);
  }
  layout.StoreScalars(config.outside->scalars.data(), row.data());
  row.erase(row.begin(), row.begin() + layout.VectorOffset(0));
  return row;
}

__global__ void ClearErrorKernel(GroupState* group) { group->error = DeviceError::kNone; }

}  // namespace

Status CudaBackend::Create(std::vector<TableConfig> configs, int32_t first_version,
                           std::shared_ptr<Backend>* backend) {
  std::shared_ptr<CudaBackend> created(new CudaBackend(std::move(configs)));
  DYNEMB_RETURN_IF_ERROR(created->Init(first_version));
  *backend = std::move(created);
  return Status();
}

CudaBackend::~CudaBackend() {
  // Kernels of programs in flight may still use the buffers.
  cudaDeviceSynchronize();
  if (device_block_ != nullptr) cudaFree(device_block_);
}

Status CudaBackend::Init(int32_t first_version) {
  int device = 0, sms = 0, cooperative = 0;
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  DYNEMB_CUDA_RETURN_IF_ERROR(
      cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device));
  num_sms_ = static_cast<unsigned>(sms);
  cooperative_ = cooperative != 0;
  const Bytes tables = static_cast<Bytes>(configs().size());
  // Group and table states side by side: one copy takes both.
  const Bytes group_bytes = static_cast<Bytes>(sizeof(GroupState));
  const Bytes state_bytes = RoundUp(group_bytes + tables * static_cast<Bytes>(sizeof(TableState)));
  const Bytes view_bytes = RoundUp(tables * static_cast<Bytes>(sizeof(TableView)));
  const Bytes optimizer_bytes = RoundUp(tables * static_cast<Bytes>(sizeof(OptimizerParameters)));
  const Bytes counts_bytes = RoundUp(tables * static_cast<Bytes>(sizeof(CallCounts)));
  const Bytes outstanding_bytes = RoundUp(max_outstanding() * static_cast<Bytes>(sizeof(uint32_t)));
  Bytes first_state_bytes = 0;
  for (const TableConfig& config : configs()) {
    first_state_bytes += static_cast<Bytes>(FirstState(config).size() * sizeof(float));
  }
  const Bytes bytes = state_bytes + view_bytes + optimizer_bytes + counts_bytes +
                      outstanding_bytes + first_state_bytes;
  void* block = nullptr;
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMalloc(&block, static_cast<size_t>(bytes)));
  device_block_ = static_cast<std::byte*>(block);
  group_ = reinterpret_cast<GroupState*>(device_block_);
  states_ = reinterpret_cast<TableState*>(device_block_ + group_bytes);
  views_ = reinterpret_cast<TableView*>(device_block_ + state_bytes);
  optimizers_ = reinterpret_cast<OptimizerParameters*>(device_block_ + state_bytes + view_bytes);
  std::byte* counts = device_block_ + state_bytes + view_bytes + optimizer_bytes;
  call_counts_ = reinterpret_cast<CallCounts*>(counts);
  outstanding_ = reinterpret_cast<uint32_t*>(counts + counts_bytes);
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemset(device_block_, 0, static_cast<size_t>(bytes)));
  GroupState first{};
  first.version = first_version;
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemcpy(group_, &first, sizeof first, cudaMemcpyHostToDevice));
  state_copy_.resize(static_cast<size_t>(state_bytes));
  DYNEMB_RETURN_IF_ERROR(snapshots_.Init(device_block_, state_bytes));

  float* first_state = reinterpret_cast<float*>(counts + counts_bytes + outstanding_bytes);
  for (size_t t = 0; t < configs().size(); ++t) {
    const TableConfig& config = configs()[t];
    const std::vector<float> first_values = FirstState(config);
    DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemcpy(first_state, first_values.data(),
                                           first_values.size() * sizeof(float),
                                           cudaMemcpyHostToDevice));
    DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemcpy(optimizers_ + t, &config.optimizer,
                                           sizeof config.optimizer, cudaMemcpyHostToDevice));
    tables_.push_back(std::make_unique<CudaTable>(config));
    DYNEMB_RETURN_IF_ERROR(tables_.back()->Init(first_values.empty() ? nullptr : first_state));
    first_state += first_values.size();
    RoomPlan plan;
    DYNEMB_RETURN_IF_ERROR(CheckFirstRoom(config, &plan));
    DYNEMB_RETURN_IF_ERROR(tables_.back()->Grow(nullptr, plan.room, views_ + t));
  }
  return CudaStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

uint32_t CudaBackend::NextEpoch(const Executor& exec) {
  if (++epoch_ == 0) {  // after 2^32 passes: old stamps and elections would look fresh
    const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
    for (size_t t = 0; t < tables_.size(); ++t) {
      cudaMemsetAsync(tables_[t]->view().stamps, 0,
                      static_cast<size_t>(tables_[t]->room().row_capacity) * sizeof(uint64_t),
                      stream);
      cudaMemsetAsync(&states_[t].last_evicted_epoch, 0, sizeof(uint32_t), stream);
    }
    cudaMemsetAsync(elections_.data(), 0, static_cast<size_t>(elections_.committed()), stream);
    cudaMemsetAsync(outstanding_, 0, static_cast<size_t>(max_outstanding()) * sizeof(uint32_t),
                    stream);
    cudaMemsetAsync(&group_->last_erase_epoch, 0, sizeof(uint32_t), stream);
    epoch_ = 1;
  }
  return epoch_;
}

Status CudaBackend::StatusOf(const GroupState& state) const {
  switch (state.error) {
    case DeviceError::kNone:
      return Status();
    case DeviceError::kStale: {
      std::string names;
      for (const TableConfig& config : configs()) {
        names += (names.empty() ? "" : ", ") + config.name;
      }
      return StaleState("this Embeddings is not the current state of its tables (", names,
                        "): its token is ", state.error_got, ", the tables are at ",
                        state.error_expected,
                        "; use the Embeddings that the last lookup, apply_gradients, assign or "
                        "erase returned, or call dynemb_jax.resync(emb) to go on from the tables "
                        "as they are. (Found on the GPU in an earlier call.)");
    }
    case DeviceError::kStaleActs:
      return StaleActs();
    case DeviceError::kReleased: {
      const TableConfig& config = configs()[static_cast<size_t>(state.error_got)];
      return ReleasedLookup(config);
    }
    case DeviceError::kBadSplits:
      return WrongRowSplits(state.error_split);
    case DeviceError::kBadMoved:
      return WrongMovedRows(configs()[static_cast<size_t>(state.error_got)]);
    case DeviceError::kBadLengths:
      return InvalidArgument("lengths of Padded must lie in [0, ", state.error_expected,
                             "], the last axis of its ids; got ", state.error_got,
                             "; pass the number of ids that are meant.");
  }
  return Status();
}

Status CudaBackend::PollOne(const Executor& exec, bool wait, bool* seen) {
  const std::byte* state = nullptr;
  int64_t call = 0;
  DYNEMB_RETURN_IF_ERROR(snapshots_.Next(wait, &state, &call));
  *seen = state != nullptr;
  if (state == nullptr) return Status();
  const GroupState& group = *reinterpret_cast<const GroupState*>(state);
  const TableState* states = reinterpret_cast<const TableState*>(&group + 1);
  for (size_t t = 0; t < tables_.size(); ++t) {
    tables_[t]->Confirmed(call, states[t].size, states[t].Erased());
  }
  Status failed = StatusOf(group);
  if (failed.ok()) return failed;
  // Calls enqueued since have done nothing and report the same error: pass over
  // them. They bring no new rows.
  while (!snapshots_.empty()) {
    DYNEMB_RETURN_IF_ERROR(snapshots_.Next(true, &state, &call));
    for (auto& one : tables_) one->Confirmed(call, one->confirmed_size(), one->confirmed_erased());
  }
  ClearErrorKernel<<<1, 1, 0, static_cast<cudaStream_t>(exec.stream)>>>(group_);
  return failed;
}

Status CudaBackend::Poll(const Executor& exec) {
  for (bool seen = true; seen;) DYNEMB_RETURN_IF_ERROR(PollOne(exec, false, &seen));
  return Status();
}

Status CudaBackend::ReadState() {
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaDeviceSynchronize());
  const Status polled = Poll(Executor{});
  if (!polled.ok()) {
    // XLA's stream does not wait for this one: the error has to be gone before the next call.
    DYNEMB_CUDA_RETURN_IF_ERROR(cudaDeviceSynchronize());
    return polled;
  }
  return CudaStatus(
      cudaMemcpy(state_copy_.data(), group_, state_copy_.size(), cudaMemcpyDeviceToHost),
      "cudaMemcpy");
}

Status CudaBackend::Check() {
  std::lock_guard<std::mutex> lock(mutex_);
  return ReadState();
}

Status CudaBackend::Version(int32_t* version) {
  std::lock_guard<std::mutex> lock(mutex_);
  return ReadVersion(version);
}

Status CudaBackend::ReadVersion(int32_t* version) {
  // An error of the past has been reported, or is dropped here: resync goes on
  // from the tables as they are.
  (void)ReadState();
  DYNEMB_RETURN_IF_ERROR(ReadState());
  *version = reinterpret_cast<const GroupState*>(state_copy_.data())->version;
  return Status();
}

Status CudaBackend::Renew(int32_t* version) {
  std::lock_guard<std::mutex> lock(mutex_);
  DYNEMB_RETURN_IF_ERROR(ReadVersion(version));
  *version = static_cast<int32_t>(static_cast<uint32_t>(*version) + kRenewStep);
  DYNEMB_CUDA_RETURN_IF_ERROR(cudaMemset(&group_->last_was_lookup, 0, sizeof(int32_t)));
  DYNEMB_CUDA_RETURN_IF_ERROR(
      cudaMemcpy(&group_->version, version, sizeof *version, cudaMemcpyHostToDevice));
  // A copy from pageable memory may return before it has landed.
  return CudaStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

Status CudaBackend::Stats(std::vector<TableStats>* stats) {
  std::lock_guard<std::mutex> lock(mutex_);
  DYNEMB_RETURN_IF_ERROR(ReadState());
  const TableState* states =
      reinterpret_cast<const TableState*>(state_copy_.data() + sizeof(GroupState));
  for (size_t t = 0; t < tables_.size(); ++t) {
    const Room room = tables_[t]->room();
    TableStats& one = stats->emplace_back();
    one.counters = states[t].counters;
    one.counters.growths = tables_[t]->growths();
    one.counters.waits = waits_;
    one.rows = states[t].size;
    one.capacity = static_cast<int64_t>(room.num_buckets) * kSlotsPerBucket;
    one.index_bytes = static_cast<Bytes>(room.num_buckets) * kBytesPerBucket;
    one.row_bytes = RoomBytes(configs()[t], room) - one.index_bytes;
    one.admission_bytes = tables_[t]->AdmissionBytes();
  }
  return Status();
}

Status CudaBackend::CountSteps(const Executor& exec, TokenPair token, int32_t* steps) {
  // Little endian: the low half of the count.
  const cudaStream_t stream = static_cast<cudaStream_t>(exec.stream);
  DYNEMB_CUDA_RETURN_IF_ERROR(
      cudaMemcpyAsync(steps, &group_->steps, sizeof *steps, cudaMemcpyDeviceToDevice, stream));
  return PassToken(exec, token);
}

Status CudaBackend::PassToken(const Executor& exec, TokenPair token) const {
  if (token.in == token.out) return Status();
  return CudaStatus(cudaMemcpyAsync(token.out, token.in, sizeof *token.in, cudaMemcpyDeviceToDevice,
                                    static_cast<cudaStream_t>(exec.stream)),
                    "cudaMemcpyAsync");
}

}  // namespace dynemb
