// What a simulated device can do: the published figures of real ones.
#pragma once

#include <optional>
#include <string_view>

namespace cokv::detail {

struct sim_device_spec {
  std::string_view name;
  double memory_bytes;      // capacity
  double memory_bandwidth;  // bytes a second
  double link_bandwidth;    // to the host, bytes a second, each way
  double flops;             // dense bf16, a second
  double launch_seconds;    // from one operation of a stream to the next; assumed, not published
};

std::optional<sim_device_spec> find_sim_device(std::string_view name);

}  // namespace cokv::detail
