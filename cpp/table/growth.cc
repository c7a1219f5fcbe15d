#include "table/growth.h"

#include <algorithm>

namespace dynemb {
namespace {

// Rows that fit beside `num_buckets` buckets; negative: not even the buckets.
int64_t RowsWithin(const TableConfig& config, uint64_t num_buckets) {
  if (config.max_bytes < 0) return kMaxRows;
  Bytes left = config.max_bytes - static_cast<Bytes>(num_buckets) * kBytesPerBucket;
  return left < 0 ? -1 : left / RowBytes(config.Layout());
}

int64_t Capacity(const TableConfig& config, uint64_t num_buckets) {
  return std::min(RowLimit(num_buckets, config.max_load), RowsWithin(config, num_buckets));
}

}  // namespace

int64_t RowLimit(uint64_t num_buckets, double max_load) {
  double slots = static_cast<double>(num_buckets) * kSlotsPerBucket;
  return std::max<int64_t>(1, static_cast<int64_t>(slots * max_load));
}

Bytes RoomBytes(const TableConfig& config, const Room& room) {
  return static_cast<Bytes>(room.num_buckets) * kBytesPerBucket +
         room.row_capacity * RowBytes(config.Layout());
}

RoomPlan PlanRoom(const TableConfig& config, const Room& now, int64_t rows, int64_t new_rows) {
  int64_t wanted = rows + new_rows;
  uint64_t buckets = now.num_buckets;
  while (Capacity(config, buckets) < wanted) {
    // A doubling must pay: where the budget makes it hold no more rows, stop. (A
    // low max_load allows one row for several small sizes; that is no budget.)
    if (Capacity(config, buckets * 2) <= Capacity(config, buckets) &&
        RowLimit(buckets * 2, config.max_load) > RowLimit(buckets, config.max_load)) {
      break;
    }
    buckets *= 2;
  }
  int64_t held = std::max(rows, std::min(wanted, Capacity(config, buckets)));
  int64_t capacity = now.row_capacity;
  if (held > capacity) {
    int64_t eighth = capacity + capacity / 8;
    capacity = std::min(std::max(held, eighth), std::max(held, RowsWithin(config, buckets)));
  }
  return {Room{buckets, capacity}, held - rows};
}

Status InitialRowsDoNotFit(const TableConfig& config, const RoomPlan& plan) {
  return MakeStatus(StatusCode::kConfig, "table '", config.name,
                    "': initial_rows=", config.initial_rows,
                    " do not fit into max_bytes=", config.max_bytes, ", ", plan.granted,
                    " rows do; lower initial_rows or raise max_bytes.");
}

}  // namespace dynemb
