#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "backend_table.h"
#include "bare_index.h"
#include "doubling.h"
#include "table/growth.h"

namespace dynemb::bench {
namespace {

constexpr int kDim = 64;
constexpr int kDoublings = 5;
constexpr int kFills = 3;
constexpr double kHoldMs = 30;  // the host maps memory meanwhile

// Wall time in ms, the work on the device included.
template <class Run>
double HostMs(Device& device, Run&& run) {
  device.Finish();
  const auto start = std::chrono::steady_clock::now();
  run();
  device.Finish();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

// Tags are read once and written for twice as many buckets; every entry is read, half
// of them move.
double FloorBytes(const Sizes& sizes, int64_t keys) {
  return 3.0 * static_cast<double>(sizes.num_buckets) * sizeof(TagSector) +
         1.5 * static_cast<double>(keys) * sizeof(Entry);
}

// The index alone, through the table's own way to grow.
void MeasureIndex(Device& device, const Sizes& sizes, double max_load) {
  const int64_t keys = RowLimit(sizes.num_buckets, max_load);
  const Draw draw{keys, 0, false, 0};
  DeviceArray<Key> some(sizes.ids);
  DeviceArray<int64_t> rows(sizes.ids);
  std::vector<double> device_ms, host_ms;
  for (int turn = 0; turn < 2 * kDoublings; ++turn) {
    BareIndex index(device, sizes.num_buckets, keys);
    if (turn % 2 == 0) {
      device_ms.push_back(device.DeviceMs(kHoldMs, [&] { index.Double(); }));
    } else {
      host_ms.push_back(HostMs(device, [&] { index.Double(); }));
    }
    DrawKeys(device, draw, sizes.ids, some.data());
    index.FindRows(some.data(), sizes.ids, rows.data());
    CheckRows(device, draw, sizes.ids, rows.data());
  }
  Line line{
      "index",           "double", "kernel", keys, 0, keys, max_load, 1.0, FloorBytes(sizes, keys),
      Summary(device_ms)};
  Print(line);
  line.clock = "host";
  line.timing = Summary(host_ms);
  Print(line);
}

// The lookup that crosses the limit, minus one that inserts as many keys and does not.
// It also waits to count its new keys, and maps an eighth more rows.
void MeasureCall(Device& device, const Sizes& sizes, double max_load) {
  const int64_t limit = RowLimit(sizes.num_buckets, max_load);
  DeviceArray<Key> keys(sizes.ids);
  std::vector<double> extra_ms;
  for (int fill = 0; fill < kFills; ++fill) {
    BackendTable table(device, Config(kDim, limit, max_load), sizes.ids);
    int64_t held = 0;
    auto insert = [&](int64_t n) {
      NumberedKeys(device, static_cast<uint64_t>(held), n, keys.data());
      held += n;
      return HostMs(device, [&] { table.Lookup(keys.data(), n); });
    };
    while (held < limit - 3 * sizes.ids) insert(std::min(sizes.ids, limit - 3 * sizes.ids - held));
    std::vector<double> ordinary;
    for (int i = 0; i < 3; ++i) ordinary.push_back(insert(sizes.ids));
    Expect(table.Stats().counters.growths, 0, "doublings before the limit");
    extra_ms.push_back(insert(sizes.ids) - Summary(ordinary).median_ms);
    const TableStats stats = table.Stats();
    Expect(stats.counters.growths, 1, "doublings at the limit");
    Expect(stats.rows, held, "rows after doubling");
  }
  Print({"index", "double_call", "host", limit, kDim, limit, max_load, 0.0,
         FloorBytes(sizes, limit), Summary(extra_ms)});
}

}  // namespace

int64_t Sizes::Keys(double load) const {
  return static_cast<int64_t>(static_cast<double>(num_buckets) * kSlotsPerBucket * load);
}

void MeasureDoubling(Device& device, const Sizes& sizes, double max_load) {
  MeasureIndex(device, sizes, max_load);
  MeasureCall(device, sizes, max_load);
}

}  // namespace dynemb::bench
