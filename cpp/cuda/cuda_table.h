// One table in device memory, as the host knows it: its buffers, its room, and an
// upper bound of its size while calls are in flight.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

#include "core/status.h"
#include "cuda/device_state.h"
#include "memory/growable_device_buffer.h"
#include "table/growth.h"
#include "table/table_config.h"

namespace dynemb {

class CudaTable {
 public:
  explicit CudaTable(const TableConfig& config)
      : config_(config),
        layout_(config.Layout()),
        owner_{"table '" + config.name + "'", config.max_bytes},
        // An index has at most two slots for each row that the load limit asks for.
        sectors_(&owner_, Share(2 * kSectorBytesPerSlot / config.max_load)),
        entries_(&owner_, Share(2 * sizeof(Entry) / config.max_load)),
        scores_(&owner_, Share(2 * kScoreBytesPerSlot / config.max_load)),
        heads_(&owner_, Share(2 * kHeadBytesPerSlot / config.max_load)),
        recorded_(&owner_, 1.0),
        sweeps_(&owner_, 0.0),
        values_(&owner_, 1.0),
        stamps_(&owner_, Share(sizeof(uint64_t))),
        touches_(&owner_, Share(sizeof(uint64_t))),
        free_rows_(&owner_, Share(sizeof(int64_t))) {}
  CudaTable(const CudaTable&) = delete;  // its buffers know their owner by address
  CudaTable& operator=(const CudaTable&) = delete;

  // Makes `room` and tells the device (*view_on_device), in the order of `stream`.
  // kMemory: unchanged.
  Status Grow(void* stream, const Room& room, TableView* view_on_device);

  // Gives back what its keys do not need. The device is idle, and is so again. now: *state, as
  // the host has read it. kMemory: some of it, or nothing, is given back.
  Status Shrink(const TableState& now, TableState* state, TableView* view_on_device);

  // Counters for admission, all 0, and clean records of expired keys. Before the first Grow.
  // first_state: as in TableView, in device memory that outlives the table.
  Status Init(const float* first_state);

  // The size is at most Bound(): what a finished call reported plus the ids of all
  // calls enqueued since.
  int64_t Bound() const { return confirmed_size_ + ids_in_flight_; }
  int64_t confirmed_size() const { return confirmed_size_; }
  int64_t confirmed_erased() const { return erased_; }
  void Enqueued(int64_t call, int64_t ids) {
    in_flight_.push_back({call, ids});
    ids_in_flight_ += ids;
  }
  // erased: evicted and expired ones as well.
  void Confirmed(int64_t call, int64_t size, int64_t erased) {
    confirmed_size_ = size;
    erased_ = erased;
    while (!in_flight_.empty() && in_flight_.front().call <= call) {
      ids_in_flight_ -= in_flight_.front().ids;
      in_flight_.pop_front();
    }
  }

  // Rows that fit without growing.
  int64_t Capacity() const;
  // Neither the budget nor max_rows lets it grow.
  bool IsAtItsBounds() const { return PlanRoom(config_, room_, Capacity(), 1).granted == 0; }
  bool is_bounded() const { return config_.score != ScoreKind::kNone; }
  bool expires() const { return config_.ttl_clock != TtlClock::kNone; }
  // Of the counters for admission, beside the table's budget.
  Bytes AdmissionBytes() const {
    return config_.admission.kind == AdmissionKind::kFrequency ? config_.admission_counters : 0;
  }
  Room room() const { return room_; }
  int64_t growths() const { return growths_; }
  const TableConfig& config() const { return config_; }
  const RowLayout& layout() const { return layout_; }
  const TableView& view() const { return view_; }

  // Takes away overflow marks that no key needs any more, once many keys are erased.
  Status TidyIfWorn(void* stream);

  // Calls that found the table short of room since it last got head-room.
  int tight_calls = 0;

 private:
  struct InFlight {
    int64_t call, ids;
  };

  static constexpr double kSectorBytesPerSlot = 1.0 * sizeof(TagSector) / kSlotsPerBucket;
  static constexpr double kScoreBytesPerSlot =
      1.0 * kScoresPerBucket * sizeof(uint64_t) / kSlotsPerBucket;
  static constexpr double kHeadBytesPerSlot = 1.0 * sizeof(uint32_t) / kSlotsPerBucket;

  // Share of the card that a buffer of so many bytes a row can need: rows whose
  // values fill the card are never more.
  double Share(double bytes_per_row) const {
    return std::min(1.0, bytes_per_row / static_cast<double>(layout_.StrideBytes()));
  }

  // Bytes of scratch to double an index of so many buckets.
  static size_t SplitBytes(uint64_t buckets);
  Status Split(void* stream, void* scratch);
  Status MergeBuckets(uint64_t num_buckets);

  TableConfig config_;
  RowLayout layout_;
  MemoryOwner owner_;
  GrowableDeviceBuffer sectors_, entries_, scores_, heads_, recorded_, sweeps_, values_, stamps_,
      touches_, free_rows_;
  MemoryOwner admission_owner_{"admission of table '" + config_.name + "'", -1};
  GrowableDeviceBuffer sketch_{&admission_owner_, 0.0};
  TableView view_{};
  Room room_{0, 0};
  int64_t growths_ = 0;
  int64_t confirmed_size_ = 0;
  int64_t erased_ = 0;  // keys, ever, as confirmed
  int64_t erased_when_tidy_ = 0;
  int64_t ids_in_flight_ = 0;
  std::deque<InFlight> in_flight_;
};

}  // namespace dynemb
