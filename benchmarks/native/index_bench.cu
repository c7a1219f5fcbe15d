// The hash table alone: no XLA, no Python, device time by events. Prints CSV.
//   dynemb_index_bench [--quick]
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>

#include "backend_table.h"
#include "bare_index.h"
#include "doubling.h"
#include "keys.cuh"
#include "table/growth.h"

namespace dynemb::bench {
namespace {

// Sectors of 32 bytes: one with tags, one with the entry; the key and what is asked for.
constexpr double kSector = 32;
constexpr double kProbe = sizeof(Key) + 2 * kSector;
// The index must not grow while it is measured at high load.
constexpr double kMaxLoad = 0.99;

Sizes FullSizes() { return {uint64_t{1} << 21, int64_t{1} << 20, 30}; }
Sizes QuickSizes() { return {uint64_t{1} << 16, int64_t{1} << 16, 10}; }

// The draw of a repetition: other keys than in the ones before, while there are some.
Draw DrawOf(int repetition, int64_t held, const Sizes& sizes, bool half) {
  const int64_t first = repetition * sizes.ids % (held - sizes.ids);
  const uint64_t absent =
      kAbsent + static_cast<uint64_t>(repetition) * static_cast<uint64_t>(sizes.ids);
  return {held, first, half, absent};
}

void MeasureCopy(Device& device) {
  const Bytes bytes = Bytes{2} << 30;
  DeviceArray<std::byte> from(bytes), to(bytes);
  const Timing timing = device.Measure(
      10, {[](int) {},
           [&](int) {
             Check(cudaMemcpyAsync(to.data(), from.data(), static_cast<size_t>(bytes),
                                   cudaMemcpyDeviceToDevice, device.stream()),
                   "cudaMemcpyAsync");
           },
           nullptr});
  Print({"copy", "copy", "kernel", 0, 0, 0, 0.0, 0.0, 2 * static_cast<double>(bytes), timing});
}

void MeasureFindRow(Device& device, const Sizes& sizes, double load) {
  const int64_t held = sizes.Keys(load);
  BareIndex index(device, sizes.num_buckets, held);
  DeviceArray<Key> keys(sizes.ids);
  DeviceArray<int64_t> rows(sizes.ids);
  for (bool half : {false, true}) {
    const Timing timing = device.Measure(
        sizes.repeats,
        {[&](int r) { DrawKeys(device, DrawOf(r, held, sizes, half), sizes.ids, keys.data()); },
         [&](int) { index.FindRows(keys.data(), sizes.ids, rows.data()); },
         [&](int r) {
           if (r > 1) return;
           CheckRows(device, DrawOf(r, held, sizes, half), sizes.ids, rows.data());
         }});
    const double hit_rate = half ? 0.5 : 1.0;
    // An absent key reads no entry; a chance match of its tag is not counted.
    const double bytes = sizeof(Key) + (1 + hit_rate) * kSector + sizeof(int64_t);
    Print({"index", "find_row", "kernel", sizes.ids, 0, held, load, hit_rate,
           bytes * static_cast<double>(sizes.ids), timing});
  }
}

// A table of the engine with keys number [0, held), in an index of num_buckets.
struct FilledTable {
  FilledTable(Device& device, const Sizes& sizes, int dim, int64_t held)
      : table(device, Config(dim, RoomFor(sizes, held), kMaxLoad), sizes.ids), keys(sizes.ids) {
    for (int64_t done = 0; done < held; done += sizes.ids) {
      const int64_t n = std::min(sizes.ids, held - done);
      NumberedKeys(device, static_cast<uint64_t>(done), n, keys.data());
      table.Lookup(keys.data(), n);
      device.Finish();
    }
    const TableStats stats = table.Stats();
    Expect(stats.rows, held, "rows of the filled table");
    Expect(stats.capacity, static_cast<int64_t>(sizes.num_buckets) * kSlotsPerBucket, "slots");
  }

  // Two calls more than there are keys, so that no call has to make room.
  static int64_t RoomFor(const Sizes& sizes, int64_t held) {
    return std::min(held + 2 * sizes.ids, RowLimit(sizes.num_buckets, kMaxLoad));
  }

  BackendTable table;
  DeviceArray<Key> keys;
};

void MeasureFind(Device& device, const Sizes& sizes, double load, int dim) {
  const int64_t held = sizes.Keys(load);
  const double n = static_cast<double>(sizes.ids), row = 4.0 * dim;
  FilledTable filled(device, sizes, dim, held);
  int64_t calls = 0, asked_known = 0;
  for (bool half : {false, true}) {
    const Timing timing =
        device.Measure(sizes.repeats, {[&](int r) {
                                         DrawKeys(device, DrawOf(r, held, sizes, half), sizes.ids,
                                                  filled.keys.data());
                                       },
                                       [&](int) {
                                         ++calls;
                                         asked_known += half ? sizes.ids / 2 : sizes.ids;
                                         filled.table.Find(filled.keys.data(), sizes.ids);
                                       },
                                       nullptr});
    const double hit_rate = half ? 0.5 : 1.0;
    const double bytes = sizeof(Key) + (1 + hit_rate) * kSector + (1 + hit_rate) * row;
    Print({"index", "find", "kernel", sizes.ids, dim, held, load, hit_rate, bytes * n, timing});
  }
  TableStats stats = filled.table.Stats();
  Expect(stats.counters.found, asked_known, "keys found");
  Expect(stats.counters.missing, calls * sizes.ids - asked_known, "keys missing");

  const Timing timing = device.Measure(
      sizes.repeats, {[&](int r) {
                        DrawKeys(device, DrawOf(r, held, sizes, false), sizes.ids,
                                 filled.keys.data());
                      },
                      [&](int) { filled.table.Lookup(filled.keys.data(), sizes.ids); }, nullptr});
  stats = filled.table.Stats();
  Expect(stats.rows, held, "rows after lookups of known keys");
  Expect(stats.counters.waits, 0, "waits");
  // Besides rows: the position of each id and the list of unique rows.
  const double bytes = kProbe + 2 * row + sizeof(int32_t) + sizeof(int64_t);
  Print({"index", "lookup", "kernel", sizes.ids, dim, held, load, 1.0, bytes * n, timing});
}

// Half of the keys are new; they are erased outside of the timing, so that the load
// stays. (Erased keys leave the overflow marks of their buckets: the index only wears.)
void MeasureFindOrInsert(Device& device, const Sizes& sizes, double load, int dim) {
  const int64_t held = sizes.Keys(load), half = sizes.ids / 2;
  const double n = static_cast<double>(sizes.ids), row = 4.0 * dim;
  FilledTable filled(device, sizes, dim, held);
  DeviceArray<Key> inserted(half);
  const Timing timing = device.Measure(
      sizes.repeats,
      {[&](int r) {
         DrawKeys(device, DrawOf(r, held, sizes, true), sizes.ids, filled.keys.data());
       },
       [&](int) { filled.table.Lookup(filled.keys.data(), sizes.ids); },
       [&](int) {
         Expect(filled.table.Stats().rows, held + half, "rows after inserting");
         // The odd positions.
         Check(cudaMemcpy2DAsync(inserted.data(), sizeof(Key), filled.keys.data() + 1,
                                 2 * sizeof(Key), sizeof(Key), static_cast<size_t>(half),
                                 cudaMemcpyDeviceToDevice, device.stream()),
               "cudaMemcpy2DAsync");
         filled.table.Erase(inserted.data(), half);
         device.Finish();
       }});
  const TableStats stats = filled.table.Stats();
  Expect(stats.rows, held, "rows after erasing");
  Expect(stats.counters.waits, 0, "waits");
  // New keys also write their tag, entry and row; only known ones read a row.
  const double bytes =
      kProbe + 0.5 * 2 * kSector + (1 + 0.5 + 0.5) * row + sizeof(int32_t) + sizeof(int64_t);
  Print({"index", "find_or_insert", "kernel", sizes.ids, dim, held, load, 0.5, bytes * n, timing});
}

// All keys are new to a full table, which gives them the rows of the keys used longest ago.
void MeasureInsertEvicting(Device& device, const Sizes& sizes, double load, int dim) {
  const int64_t held = sizes.Keys(load);
  const double n = static_cast<double>(sizes.ids), row = 4.0 * dim;
  TableConfig config = Config(dim, held, kMaxLoad);
  config.score = ScoreKind::kStep;
  config.on_full = OnFull::kEvict;
  config.max_rows = held;
  config.max_outstanding = 1;
  BackendTable table(device, config, sizes.ids);
  DeviceArray<Key> keys(sizes.ids);
  for (int64_t done = 0; done < held; done += sizes.ids) {
    const int64_t count = std::min(sizes.ids, held - done);
    NumberedKeys(device, static_cast<uint64_t>(done), count, keys.data());
    table.Lookup(keys.data(), count);
    device.Finish();
  }
  int64_t calls = 0;
  const Timing timing = device.Measure(
      sizes.repeats, {[&](int) {
                        const int64_t first = held + calls++ * sizes.ids;
                        NumberedKeys(device, static_cast<uint64_t>(first), sizes.ids, keys.data());
                      },
                      [&](int) { table.Lookup(keys.data(), sizes.ids); }, nullptr});
  const TableStats stats = table.Stats();
  Expect(stats.rows, held, "rows of a full table");
  Expect(stats.counters.evicted + stats.counters.refused_pinned, calls * sizes.ids,
         "keys evicted or refused");
  Expect(stats.counters.waits, 0, "waits");
  // Tags and the scores of two buckets, then the tag, the entry and the score of the slot.
  const double bytes = sizeof(Key) + 2 * (kSector + kScoresPerBucket * sizeof(uint64_t)) +
                       3 * kSector + 2 * row + sizeof(int32_t) + sizeof(int64_t);
  Print({"index", "insert_evicting", "kernel", sizes.ids, dim, held, load, 0.0, bytes * n, timing});
}

void Run(bool quick) {
  const Sizes sizes = quick ? QuickSizes() : FullSizes();
  Device device;
  PrintHeader();
  MeasureCopy(device);
  for (double load : {0.8, 0.95}) MeasureFindRow(device, sizes, load);
  for (int dim : {64, 128}) {
    for (double load : {0.8, 0.95}) MeasureFind(device, sizes, load, dim);
  }
  MeasureFindOrInsert(device, sizes, 0.75, 64);
  MeasureInsertEvicting(device, sizes, 0.85, 64);
  for (double max_load : {0.85, 0.97}) MeasureDoubling(device, sizes, max_load);
}

}  // namespace
}  // namespace dynemb::bench

int main(int argc, char** argv) {
  const bool quick = argc == 2 && std::strcmp(argv[1], "--quick") == 0;
  if (argc > 1 && !quick) {
    std::fprintf(stderr, "usage: %s [--quick]\n", argv[0]);
    return 2;
  }
  try {
    dynemb::bench::Run(quick);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
