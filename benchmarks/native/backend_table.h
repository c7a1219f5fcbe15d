// One table of the engine, with the outputs of its calls.
#pragma once

#include <cstdint>
#include <memory>

#include "core/types.h"
#include "device.h"
#include "table/backend.h"

namespace dynemb::bench {

// keys: device memory. Calls enqueue on the device's stream.
class BackendTable {
 public:
  // max_ids: of any call.
  BackendTable(Device& device, const TableConfig& config, int64_t max_ids);

  void Lookup(const Key* keys, int64_t num_ids);
  void Find(const Key* keys, int64_t num_ids);
  void Erase(const Key* keys, int64_t num_keys);
  TableStats Stats();

 private:
  // A verb that changes the table takes one token and writes the other.
  TokenPair NextToken();

  Device& device_;
  std::shared_ptr<Backend> backend_;
  DeviceArray<float> rows_;
  DeviceArray<int32_t> index_;
  DeviceArray<int64_t> unique_rows_;
  DeviceArray<int32_t> header_, tokens_, count_;
  int token_ = 0;
};

// SGD, uniform first values; the index gets no larger than `max_load` asks for.
TableConfig Config(int dim, int64_t initial_rows, double max_load);

}  // namespace dynemb::bench
