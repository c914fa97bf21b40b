// What will go wrong in a simulated run, decided before it begins: from one seed, faults of named hosts, links, disks
// and devices, each with its time and its end. A profile bounds how much breaks at once and says when everything is
// mended, so that a test can ask for safety while things break and for progress afterwards.
//
//     cokv::sim::fault_profile profile;
//     profile.nodes = {"cache", "client"};                      // killed and paused; links between them break
//     profile.disks = {"cache"};
//     auto plan = cokv::sim::fault_plan::make(seed, profile);   // the same seed and profile, the same plan
//     plan.apply(context);                                      // before it runs
//     context.run_until(cokv::time_point(plan.quiet_from()));
//     ...                                                       // nothing fails from here on: what is asked is done
//
// A killed node starts again when its fault ends, with what its `boot` function starts (sim_node.hpp).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cokv/runtime/sim_context.hpp"

namespace cokv::sim {

enum class fault_kind : std::uint8_t {
  kill,           // the host goes with what its disk has not synced, and starts again
  pause,          // the host stands still
  partition,      // nothing passes between two hosts
  one_way,        // nothing passes from the first to the second
  clog,           // what passes between them comes late
  slow_link,      // a thousandth of the bandwidth, a hundred times the latency
  reset,          // their connections break, once
  net_flips,      // one of ten writes on the network arrives with a wrong bit
  disk_full,      // no write has room
  disk_errors,    // one of five reads, writes and syncs fails
  disk_flips,     // one of ten reads and writes has a wrong bit
  device_errors,  // one of ten operations fails
  device_slow,    // everything takes twenty times as long
  device_loss,    // the device is gone, and opens again afterwards
};
constexpr std::size_t fault_kinds = 14;
std::string_view name_of(fault_kind kind) noexcept;

struct fault {
  fault_kind kind;
  duration at;                // since the simulation began
  duration lasts;             // 0: it happens, and is over
  std::string target, other;  // a host and, of a link, the other; of a device, its name

  bool operator==(const fault&) const = default;
};

struct fault_profile {
  std::vector<std::string> nodes;
  std::vector<std::pair<std::string, std::string>> links;    // none: every two of the nodes
  std::vector<std::string> disks;                            // by host
  std::vector<std::pair<std::string, std::string>> devices;  // host and name

  duration starts = duration(0);                // no fault begins before
  duration horizon = std::chrono::seconds(10);  // every fault is over by then
  duration shortest = std::chrono::milliseconds(1);
  duration longest = std::chrono::seconds(2);
  double faults_per_second = 2;    // as long as the bounds below leave room
  std::size_t most_faults = 1000;  // of the plan
  std::size_t most_at_once = 3;
  std::size_t most_nodes_down = 1;  // killed or paused

  // How often a kind is drawn, beside the others; kinds without a target never are. Wrong bits are for programs that
  // verify what they read: ask for them.
  std::array<double, fault_kinds> weights = {1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0, 1, 1, 1};
  double& weight(fault_kind k) { return weights[static_cast<std::size_t>(k)]; }
};

class fault_plan {
 public:
  // Throws std::invalid_argument for a profile that contradicts itself.
  static fault_plan make(std::uint64_t seed, const fault_profile& profile);
  fault_plan() = default;
  explicit fault_plan(std::vector<fault> faults) : faults_(std::move(faults)) {}

  const std::vector<fault>& faults() const noexcept { return faults_; }  // in the order of their times
  duration quiet_from() const noexcept;                                  // the last one is over
  std::string to_string() const;                                         // a line for each
  std::uint64_t hash() const noexcept;

  // Sets the timers that break things and mend them. Times that have passed are now. Throws std::invalid_argument when
  // the context has no such host, config_error for a device that there can't be.
  void apply(sim_context& context) const;

 private:
  std::vector<fault> faults_;
};

}  // namespace cokv::sim
