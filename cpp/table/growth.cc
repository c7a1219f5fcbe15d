#include "table/growth.h"

#include <algorithm>

namespace dynemb {
namespace {

// Rows that fit beside `num_buckets` buckets; negative: not even the buckets.
int64_t RowsWithin(const TableConfig& config, uint64_t num_buckets) {
  if (config.max_bytes < 0) return kMaxRows;
  Bytes left = config.max_bytes - static_cast<Bytes>(num_buckets) * BucketBytes(config);
  return left < 0 ? -1 : left / RowBytes(config);
}

int64_t MaxRows(const TableConfig& config) {
  return config.max_rows < 0 ? kMaxRows : config.max_rows;
}

int64_t Capacity(const TableConfig& config, uint64_t num_buckets) {
  return std::min(
      {RowLimit(num_buckets, config.max_load), RowsWithin(config, num_buckets), MaxRows(config)});
}

// A doubling must pay and must leave room for the rows that are there, which are
// never given back. (A low max_load allows one row for several small sizes.)
bool MayDouble(const TableConfig& config, const Room& now, uint64_t num_buckets) {
  if (RowsWithin(config, num_buckets * 2) < now.row_capacity) return false;
  return Capacity(config, num_buckets * 2) > Capacity(config, num_buckets) ||
         RowLimit(num_buckets * 2, config.max_load) == RowLimit(num_buckets, config.max_load);
}

}  // namespace

int64_t RowLimit(uint64_t num_buckets, double max_load) {
  double slots = static_cast<double>(num_buckets) * kSlotsPerBucket;
  return std::max<int64_t>(1, static_cast<int64_t>(slots * max_load));
}

Bytes RoomBytes(const TableConfig& config, const Room& room) {
  return static_cast<Bytes>(room.num_buckets) * BucketBytes(config) +
         room.row_capacity * RowBytes(config);
}

Status FullTable(const TableConfig& config, const Room& now, int64_t rows, int64_t new_rows,
                 int64_t granted) {
  const bool by_rows = config.max_rows >= 0 && rows + granted >= config.max_rows;
  const char* limit = by_rows ? "max_rows" : "max_bytes";
  return TableFull("table '", config.name, "' is full: it holds ", rows, " rows in ",
                   RoomBytes(config, now), " bytes, ", new_rows, " new keys came and ", granted,
                   " of them fit into ", limit, "=", by_rows ? config.max_rows : config.max_bytes,
                   "; raise ", limit, ", erase keys, or set on_full=\"drop\"",
                   config.score == ScoreKind::kNone ? "" : " or \"evict\"", ".");
}

RoomPlan PlanRoom(const TableConfig& config, const Room& now, int64_t rows, int64_t new_rows) {
  const int64_t wanted = std::min(rows + new_rows, std::max(rows, MaxRows(config)));
  uint64_t buckets = now.num_buckets;
  while (Capacity(config, buckets) < wanted && MayDouble(config, now, buckets)) buckets *= 2;
  const int64_t held = std::max(rows, std::min(wanted, Capacity(config, buckets)));
  int64_t capacity = std::max(now.row_capacity, held);
  // An eighth more, so that rows grow seldom; not where a budget may need it for
  // the index.
  if (held > now.row_capacity && config.max_bytes < 0) {
    const int64_t eighth_more = now.row_capacity + now.row_capacity / 8;
    capacity = std::max(held, std::min(eighth_more, MaxRows(config)));
  }
  return {Room{buckets, capacity}, held - rows};
}

Status CheckFirstRoom(const TableConfig& config, RoomPlan* plan) {
  const Bytes least = RoomBytes(config, Room{1, 1});
  if (config.max_bytes >= 0 && config.max_bytes < least) {
    return MakeStatus(StatusCode::kConfig, "table '", config.name,
                      "': max_bytes=", config.max_bytes, " is less than a table of one row takes, ",
                      least, " bytes; raise it.");
  }
  *plan = PlanRoom(config, Room{1, 0}, 0, config.initial_rows);
  if (plan->granted == config.initial_rows) return Status();
  return MakeStatus(StatusCode::kConfig, "table '", config.name,
                    "': initial_rows=", config.initial_rows,
                    " do not fit into max_bytes=", config.max_bytes, ", ", plan->granted,
                    " rows do; lower initial_rows or raise max_bytes.");
}

}  // namespace dynemb
