// What both native modules offer: groups made and closed, host calls answered. No
// logic. `Scope` makes a group's device the thread's own: Scope scope(device).
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "core/hash.h"
#include "core/probe.h"
#include "table/registry.h"
#include "xla/ffi/api/ffi.h"

namespace nb = nanobind;

namespace dynemb {

// Python turns the text's prefix into an exception class of its own.
inline void Raise(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

// Calls body(backend) of a group, on its device.
template <class Scope, class Body>
Status CallOnGroup(int64_t group, int32_t device, Body&& body) {
  const Scope scope(device);
  DYNEMB_RETURN_IF_ERROR(scope.status());
  std::shared_ptr<Backend> backend;
  DYNEMB_RETURN_IF_ERROR(Registry::Global().Find(group, device, &backend));
  return body(*backend);
}

// The same for Python, whose other threads go on meanwhile: the body may wait for a
// device whose program waits for one of them.
template <class Scope, class Body>
void OnGroup(int64_t group, int32_t device, Body&& body) {
  Status status;
  {
    const nb::gil_scoped_release release;
    status = CallOnGroup<Scope>(group, device, body);
  }
  Raise(status);
}

template <class Handler>
nb::capsule Capsule(Handler* handler) {
  return nb::capsule(reinterpret_cast<void*>(handler));
}

inline TableConfig ConfigFromDict(const nb::dict& fields, uint64_t seed) {
  TableConfig config;
  config.name = nb::cast<std::string>(fields["name"]);
  config.dim = nb::cast<int>(fields["dim"]);
  config.row_type = static_cast<RowType>(nb::cast<int>(fields["row_type"]));
  config.stochastic_rounding = nb::cast<bool>(fields["stochastic_rounding"]);
  config.optimizer = {static_cast<OptimizerKind>(nb::cast<int>(fields["optimizer"])),
                      nb::cast<double>(fields["beta1"]),
                      nb::cast<double>(fields["beta2"]),
                      nb::cast<float>(fields["epsilon"]),
                      nb::cast<float>(fields["initial_state"]),
                      nb::cast<float>(fields["initial_scalar"]),
                      nb::cast<float>(fields["weight_decay"]),
                      nb::cast<float>(fields["l1"]),
                      nb::cast<float>(fields["l2"]),
                      nb::cast<float>(fields["initial_sum"]),
                      nb::cast<float>(fields["max_grad_norm"])};
  if (const nb::object outside = fields["outside"]; !outside.is_none()) {
    auto [vectors, scalars] =
        nb::cast<std::pair<std::vector<float>, std::vector<int32_t>>>(outside);
    config.outside = OutsideState{std::move(vectors), std::move(scalars)};
  }
  config.initializer = {static_cast<InitializerKind>(nb::cast<int>(fields["initializer"])),
                        nb::cast<float>(fields["initializer_parameter"]),
                        RowInitStream(seed, config.name)};
  config.max_load = nb::cast<double>(fields["max_load"]);
  config.initial_rows = nb::cast<int64_t>(fields["initial_rows"]);
  config.max_bytes = nb::cast<int64_t>(fields["max_bytes"]);
  config.on_full = static_cast<OnFull>(nb::cast<int>(fields["on_full"]));
  config.missing_is_initial = nb::cast<bool>(fields["missing_is_initial"]);
  config.missing_value = nb::cast<float>(fields["missing_value"]);
  config.trainable = nb::cast<bool>(fields["trainable"]);
  config.max_rows = nb::cast<int64_t>(fields["max_rows"]);
  config.score = static_cast<ScoreKind>(nb::cast<int>(fields["score"]));
  config.half_life = nb::cast<int64_t>(fields["half_life"]);
  config.ttl_clock = static_cast<TtlClock>(nb::cast<int>(fields["ttl_clock"]));
  config.ttl = nb::cast<int64_t>(fields["ttl"]);
  config.admission = {static_cast<AdmissionKind>(nb::cast<int>(fields["admission"])),
                      nb::cast<uint64_t>(fields["admission_threshold"]),
                      nb::cast<uint64_t>(fields["admission_limit"]),
                      SplitMix64(RowInitStream(seed, config.name))};
  config.admission_counters = nb::cast<int64_t>(fields["admission_counters"]);
  config.recorded_evictions = nb::cast<int64_t>(fields["recorded_evictions"]);
  config.max_outstanding = nb::cast<int64_t>(fields["max_outstanding"]);
  config.deterministic = nb::cast<bool>(fields["deterministic"]);
  return config;
}

// Makes a group of one backend: CpuBackend::Create or CudaBackend::Create.
using CreateBackend = Status (*)(std::vector<TableConfig>, int32_t, std::shared_ptr<Backend>*);

template <CreateBackend Create, class Scope>
void CreateGroup(int64_t group, int32_t device, int32_t first_version, uint64_t seed,
                 const std::vector<nb::dict>& tables) {
  const Scope scope(device);
  Raise(scope.status());
  std::vector<TableConfig> configs;
  for (const nb::dict& fields : tables) configs.push_back(ConfigFromDict(fields, seed));
  std::shared_ptr<Backend> backend;
  Raise(Create(std::move(configs), first_version, &backend));
  // Whichever thread lets go last, the memory is given back on its device.
  Backend* const address = backend.get();
  auto give_back = [owner = std::move(backend), device](Backend*) mutable {
    const Scope last_scope(device);
    owner.reset();
  };
  Registry::Global().Add(group, device, std::shared_ptr<Backend>(address, std::move(give_back)));
}

inline nb::dict StatsToDict(const TableStats& stats) {
  nb::dict out;
  const TableCounters& c = stats.counters;
  out["rows"] = stats.rows;
  out["capacity"] = stats.capacity;
  out["index_bytes"] = stats.index_bytes;
  out["row_bytes"] = stats.row_bytes;
  out["admission_bytes"] = stats.admission_bytes;
  out["lookups"] = c.lookups;
  out["ids"] = c.ids;
  out["hits"] = c.hits;
  out["inserted"] = c.inserted;
  out["refused_budget"] = c.refused_budget;
  out["refused_pinned"] = c.refused_pinned;
  out["refused_admission"] = c.refused_admission;
  out["evicted"] = c.evicted;
  out["expired"] = c.expired;
  out["padded"] = c.padded;
  out["found"] = c.found;
  out["missing"] = c.missing;
  out["updates"] = c.updates;
  out["updated_rows"] = c.updated_rows;
  out["assigned"] = c.assigned;
  out["assign_refused"] = c.assign_refused;
  out["erased"] = c.erased;
  out["waits"] = c.waits;
  out["growths"] = c.growths;
  out["rows_copied"] = c.rows_copied;
  return out;
}

template <class Scope>
std::vector<nb::dict> GroupStats(int64_t group, int32_t device) {
  std::vector<nb::dict> out;
  std::vector<TableStats> tables;
  OnGroup<Scope>(group, device, [&](Backend& backend) { return backend.Stats(&tables); });
  for (const TableStats& stats : tables) out.push_back(StatsToDict(stats));
  return out;
}

using KeysIn = nb::ndarray<const uint64_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Int64sOut = nb::ndarray<int64_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using BucketsOut = nb::ndarray<int64_t, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using BoolsOut = nb::ndarray<uint8_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatsOut = nb::ndarray<float, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class Scope>
void GetRows(int64_t group, int32_t device, int table, KeysIn keys, BoolsOut found, FloatsOut rows,
             FloatsOut state) {
  const GetBatch batch{table,        keys.data(), static_cast<int64_t>(keys.size()),
                       found.data(), rows.data(), state.data()};
  OnGroup<Scope>(group, device, [&](Backend& backend) { return backend.Get(batch); });
}

// (keys, scores, lost)
template <class Scope>
nb::tuple DrainEvicted(int64_t group, int32_t device, int table) {
  EvictedKeys evicted;
  OnGroup<Scope>(group, device,
                 [&](Backend& backend) { return backend.DrainEvicted(table, &evicted); });
  std::vector<Key> keys;
  std::vector<uint64_t> scores;
  for (const EvictedKey& one : evicted.keys) {
    keys.push_back(one.key);
    scores.push_back(one.score);
  }
  return nb::make_tuple(keys, scores, evicted.lost);
}

// For tests that need keys which collide.
inline void HomeBuckets(KeysIn keys, uint64_t num_buckets, Int64sOut buckets) {
  for (size_t i = 0; i < keys.size(); ++i) {
    buckets.data()[i] = static_cast<int64_t>(HashKey(keys.data()[i]).Home(num_buckets));
  }
}

// For tests that predict victims: buckets[i] holds the first buckets of key i's path,
// as many as it is wide.
inline void PathBuckets(KeysIn keys, uint64_t num_buckets, BucketsOut buckets) {
  const size_t length = buckets.shape(1);
  for (size_t i = 0; i < keys.size(); ++i) {
    ProbePath path(HashKey(keys.data()[i]), num_buckets);
    for (size_t step = 0; step < length; ++step, path.Advance()) {
      buckets.data()[i * length + step] = static_cast<int64_t>(path.bucket());
    }
  }
}

// Adds to the module all but its handlers.
template <CreateBackend Create, class Scope>
void BindGroups(nb::module_& m) {
  m.def("ffi_api_version",
        [] { return std::pair<int, int>(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR); });
  m.def("create_group", &CreateGroup<Create, Scope>, nb::arg("group"), nb::arg("device"),
        nb::arg("first_version"), nb::arg("seed"), nb::arg("tables"));
  m.def(
      "close_group", [](int64_t group) { Registry::Global().Remove(group); }, nb::arg("group"),
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "version",
      [](int64_t group, int32_t device) {
        int32_t version = 0;
        OnGroup<Scope>(group, device, [&](Backend& backend) { return backend.Version(&version); });
        return version;
      },
      nb::arg("group"), nb::arg("device"));
  m.def(
      "renew",
      [](int64_t group, int32_t device) {
        int32_t version = 0;
        OnGroup<Scope>(group, device, [&](Backend& backend) { return backend.Renew(&version); });
        return version;
      },
      nb::arg("group"), nb::arg("device"));
  m.def(
      "check",
      [](int64_t group, int32_t device) {
        OnGroup<Scope>(group, device, [](Backend& backend) { return backend.Check(); });
      },
      nb::arg("group"), nb::arg("device"));
  m.def("stats", &GroupStats<Scope>, nb::arg("group"), nb::arg("device"));
  m.def("get_rows", &GetRows<Scope>, nb::arg("group"), nb::arg("device"), nb::arg("table"),
        nb::arg("keys"), nb::arg("found"), nb::arg("rows"), nb::arg("state"));
  m.def(
      "erase_below",
      [](int64_t group, int32_t device, int32_t from, int table, uint64_t score) {
        int32_t to = 0;
        OnGroup<Scope>(group, device, [&](Backend& backend) {
          return backend.EraseBelow(from, table, score, &to);
        });
        return to;
      },
      nb::arg("group"), nb::arg("device"), nb::arg("version"), nb::arg("table"), nb::arg("score"));
  m.def(
      "clear",
      [](int64_t group, int32_t device, int32_t from, int table) {
        int32_t to = 0;
        OnGroup<Scope>(group, device,
                       [&](Backend& backend) { return backend.Clear(from, table, &to); });
        return to;
      },
      nb::arg("group"), nb::arg("device"), nb::arg("version"), nb::arg("table"));
  m.def(
      "shrink",
      [](int64_t group, int32_t device, int32_t from) {
        int32_t to = 0;
        std::vector<Bytes> freed;
        OnGroup<Scope>(group, device,
                       [&](Backend& backend) { return backend.Shrink(from, &freed, &to); });
        return std::pair(to, freed);
      },
      nb::arg("group"), nb::arg("device"), nb::arg("version"));
  m.def("drain_evicted", &DrainEvicted<Scope>, nb::arg("group"), nb::arg("device"),
        nb::arg("table"));
  m.def("path_buckets", &PathBuckets, nb::arg("keys"), nb::arg("num_buckets"), nb::arg("buckets"));
  m.def("home_buckets", &HomeBuckets, nb::arg("keys"), nb::arg("num_buckets"), nb::arg("buckets"));
}

}  // namespace dynemb
