// The simulated devices of a context: one for each name that a host opens, their engines, and whose memory is where.
#pragma once

#include <map>
#include <vector>

#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/sim_device.hpp"
#include "engines.hpp"
#include "sim/weak_list.hpp"

namespace cokv::detail {

class sim_stream;

// Shared with every buffer and stream, which may outlive the context.
class sim_devices : public std::enable_shared_from_this<sim_devices> {
 public:
  static std::shared_ptr<sim_devices> of(sim_context& core);

  sim::device& find(sim_context& core, std::string_view name, const std::string& host);  // throws config_error
  void define(sim::device_spec spec);

  // Memory of a device in its present life. Throws std::bad_alloc.
  buffer allocate(sim::device& owner, std::size_t bytes);
  // Whose memory it is; null when it is nobody's, or was a device's that was lost since.
  sim::device* owner(const buffer& b) const;

  sim_engines engines;
  weak_list<sim_stream> streams;  // of all of them

 private:
  struct region {
    std::size_t bytes;
    sim::device* owner;
    std::uint64_t life;
  };
  std::map<const std::byte*, region> memory_;  // looked up, never walked: addresses are not part of a run
  std::map<std::pair<std::string, std::string>, std::unique_ptr<sim::device>> devices_;
  std::map<std::string, sim::device_spec, std::less<>> defined_;
};

// What `name` means, without the number that tells devices apart. Throws config_error.
sim::device_spec sim_spec_of(std::string_view name);
bool names_sim_device(std::string_view name);

}  // namespace cokv::detail

namespace cokv::sim {

struct device::state {
  sim_context& core;
  detail::sim_devices& all;
  std::string name, host;
  device_spec spec;
  std::uint64_t life = 1;  // a device that was lost and opened again is another one
  time_point back_at{};
  std::uint64_t allocated = 0;
  detail::sim_engine compute, to_device, to_host, inside, nvlink_out, nvlink_in;
};

}  // namespace cokv::sim
