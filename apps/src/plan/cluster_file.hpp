// What a cluster is made of, as its owner writes it down: kinds of machines, their GPUs, what links between them carry
// one way, and what an hour of them costs.
//
//     {"machines": [{"name": "a100x4", "count": 8, "gpus": 4, "gpu": "a100",
//                    "link_bytes_per_second": 270e9, "network_bytes_per_second": 12.5e9, "price_per_hour": 16}]}
//
// | field                    | of                                                                                          |
// |--------------------------|---------------------------------------------------------------------------------------------|
// | name                     | the kind; once, of letters, digits, dots, dashes and underscores                            |
// | count                    | such machines, 1 to 100,000                                                                 |
// | gpus                     | a machine's, 1 to 64                                                                        |
// | gpu                      | a published one's name, or an object as in a device file (sim_device_spec.hpp)              |
// | memory_bytes             | a GPU's that may be used; all of it unless told, never more                                 |
// | link_bytes_per_second    | from one GPU of a machine to another, as measured; NVLink's, or PCIe's, unless told         |
// | network_bytes_per_second | from one machine to another, as measured                                                    |
// | network_seconds          | how long the first byte takes there; 10e-6 unless told                                      |
// | price_per_hour           | of a machine, in any currency; 0 unless told                                                |
//
// Bandwidths are one way. A data sheet's number for a link often counts both: one above the sheet's of the GPU, one way, is
// refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cokv/runtime/sim_device_spec.hpp"

namespace cokv::plan {

struct machine_kind {
  std::string name;
  std::uint32_t count = 1, gpus = 1;
  sim::device_spec gpu;  // memory_bytes: what may be used of it
  double link_bytes_per_second = 0, network_bytes_per_second = 0, network_seconds = 10e-6;
  double price_per_hour = 0;

  double memory_bytes() const noexcept { return gpus * gpu.memory_bytes; }
};

struct cluster {
  std::vector<machine_kind> machines;  // one at least
  // Throws config_error naming those that there are.
  const machine_kind& kind(std::string_view name) const;
};

// From the text of such a file, or from the file, of at most 1 MiB. Throws config_error, whose line names the file and the field.
cluster parse_cluster(std::string_view text, const std::string& file);
cluster read_cluster(const std::string& file);
// The kind that --machine names, or the file's first.
machine_kind read_machine(const std::string& file, const std::string& name);

}  // namespace cokv::plan
