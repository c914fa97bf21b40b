// The network of a sim_context, as tests see it: what goes wrong on it, and who can't reach whom. The streams on it
// are ordinary byte_streams: bounded socket buffers, latency and bandwidth, transfers cut short, resets, flipped bits.
//
//     auto& net = cokv::sim::net::of(context);
//     net.faults.reset = 0.01;                       // one transfer in a hundred breaks its connection
//     net.partition("home", "cache");                // nothing passes until heal()
//     net.set_link("home", "far", {.latency_min = 30ms, .latency_max = 40ms, .bytes_per_second = 1e7});
//
// Hosts are the names of nodes; a sim_context itself is the host "home". On every host, "localhost", "127.0.0.1" and
// an empty name mean that host.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cokv/runtime/sim_context.hpp"

namespace cokv::sim {

struct net_faults {
  duration latency_min = std::chrono::microseconds(20);
  duration latency_max = std::chrono::microseconds(200);
  double bytes_per_second = 1.25e9;       // of each direction of each connection
  std::size_t socket_buffer = 64 * 1024;  // bytes sent and not yet read; a writer waits for room

  // Probabilities.
  double short_transfer = 0.25;  // a read or write moves fewer bytes than it could
  double reset = 0;              // a write breaks its connection
  double flip = 0;               // a write's bytes arrive with one bit flipped
  double refuse = 0;             // a connection is refused
  double clog = 0;               // a write's bytes take up to clog_max longer

  duration clog_max = std::chrono::seconds(1);
  duration connect_timeout = std::chrono::seconds(10);  // to a host that can't be reached
  duration give_up = std::chrono::seconds(60);          // bytes that can't be delivered: the connection times out
};

// Of the connections between two hosts, in place of the network's.
struct net_link {
  duration latency_min = std::chrono::microseconds(20);
  duration latency_max = std::chrono::microseconds(200);
  double bytes_per_second = 1.25e9;
};

struct net_counts {
  std::uint64_t connections = 0, refused = 0, bytes = 0, resets = 0, flips = 0, short_transfers = 0, timeouts = 0;
};

class net {
 public:
  static net& of(sim_context& context);

  net_faults faults;
  net_counts counts;

  void partition(const std::string& a, const std::string& b);              // both ways; connections stay, bytes wait
  void partition_one_way(const std::string& from, const std::string& to);  // what goes the other way arrives
  void isolate(const std::string& host);  // nothing leaves or reaches it, itself included
  void heal(const std::string& a, const std::string& b);
  void heal();
  void clog(const std::string& a, const std::string& b, duration for_how_long);
  void reset_connections(const std::string& host);
  void reset_connections(const std::string& a, const std::string& b);

  void set_link(const std::string& a, const std::string& b, const net_link& link);  // both ways
  void clear_link(const std::string& a, const std::string& b);

  class state;
  explicit net(sim_context& context);
  ~net();
  state& get_state() { return *state_; }

 private:
  friend class state;
  std::unique_ptr<state> state_;
};

}  // namespace cokv::sim
