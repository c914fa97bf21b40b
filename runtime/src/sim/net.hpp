// What the simulated network is made of: connections of two directions, doors where they are accepted, and hosts.
#pragma once

#include <deque>
#include <map>
#include <set>

#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/net.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "cokv/runtime/trace.hpp"
#include "sim/weak_list.hpp"

namespace cokv::detail {

using transfer_operation = operation<void(error_code, std::size_t)>;
using accept_operation = operation<void(error_code, byte_stream)>;

class sim_connection : public std::enable_shared_from_this<sim_connection> {
 public:
  sim_connection(sim::net::state& net, sim_domain& client, sim_domain& server, std::string client_name,
                 std::string server_name, bool local);

  void read(int side, const byte_stream::mutable_buffers& into, byte_stream::handler done);
  void write(int side, const byte_stream::const_buffers& from, byte_stream::handler done);
  result<std::size_t> write_now(int side, const byte_stream::const_buffers& from);
  result<std::size_t> read_now(int side, const byte_stream::mutable_buffers& into);
  void shutdown_send(int side);
  void close(int side);
  bool is_open(int side) const { return ends_[side].open; }
  bool quiet(int side) const;
  bool local() const { return local_; }  // no network between the two: only their death parts them
  void attach(int side, byte_stream::descriptor d) { ends_[side].attached.push_back(std::move(d)); }
  byte_stream::descriptor take_attached(int side);
  const std::string& peer(int side) const { return ends_[1 - side].name; }
  sim_domain& domain(int side) const { return *ends_[side].domain; }

  void reset(int side);  // this side learns now, the other a latency later
  void lose(int side);   // the side's host is gone
  void release();        // a partition healed: what was held arrives
  bool joins(const std::string& a, const std::string& b) const;

 private:
  struct segment {
    std::vector<std::byte> bytes;
    bool last = false;
    std::deque<byte_stream::descriptor> descriptors = {};
  };
  struct end {
    sim_domain* domain;
    std::string name;
    bool open = true;
    error_code failed;
    operation_list<transfer_operation> reader, writer;  // one each at most
    byte_stream::mutable_buffers into;
    byte_stream::const_buffers from;
    // The direction towards this end.
    std::vector<std::byte> arrived;
    std::size_t taken = 0;  // of what arrived
    std::size_t in_flight = 0;
    bool last_sent = false, last_arrived = false;
    time_point link_free{}, last_arrival{};
    std::deque<segment> held;
    error_code held_failure;                       // that its peer has gone: news as held up as bytes are
    std::deque<byte_stream::descriptor> attached;  // to the next write
    std::deque<byte_stream::descriptor> descriptors;
  };

  void pump_read(int side);
  void pump_write(int side);
  result<std::size_t> take(int side, const byte_stream::mutable_buffers& into);  // would_block: nothing is there
  result<std::size_t> push(int side, const byte_stream::const_buffers& from);    // would_block: there is no room
  void send(int to, segment s);
  void arrive(int to, segment s);
  void deliver(int to, segment s);
  void fail(int side, error_code ec);
  void fail_later(int side, error_code ec);
  bool blocked(int to) const;
  void note(int to, std::string what, time_point arrives) const;
  const std::string& host(int side) const { return ends_[side].domain->host; }

  sim::net::state& net_;
  bool local_;
  end ends_[2];
};

// Where a host listens.
struct sim_door {
  sim_domain* domain;
  endpoint at;
  std::size_t backlog;
  bool open = true;
  std::deque<byte_stream> waiting;
  operation_list<accept_operation> acceptors;
};

}  // namespace cokv::detail

namespace cokv::sim {

class net::state {
 public:
  struct host {
    detail::sim_domain* domain;
    detail::weak_list<detail::sim_door> doors = {};
    detail::weak_list<detail::sim_connection> connections = {};
  };

  state(sim_context& c, net& owner) : core(c), of(owner), recorder(trace::of(c.get_executor())) {}

  sim_context& core;
  net& of;
  trace::recorder& recorder;
  std::map<std::pair<std::string, std::uint16_t>, std::shared_ptr<detail::sim_door>> doors;
  std::map<std::string, host> hosts;                      // those that are up
  std::set<std::string> names;                            // those that ever were
  using direction = std::pair<std::string, std::string>;  // from, to
  std::set<direction> cut;
  std::map<direction, time_point> clogged;  // until when
  std::map<direction, net_link> links;
  detail::weak_list<detail::sim_connection> connections;
  std::uint16_t next_port = 40000;

  duration latency(const std::string& from, const std::string& to) {
    if (const auto* own = link(from, to)) return core.between(own->latency_min, own->latency_max);
    return core.between(of.faults.latency_min, of.faults.latency_max);
  }
  double bytes_per_second(const std::string& from, const std::string& to) const {
    const auto* own = link(from, to);
    return own ? own->bytes_per_second : of.faults.bytes_per_second;
  }
  bool blocked(const std::string& from, const std::string& to) const {
    if (const auto until = clogged.find({from, to}); until != clogged.end() && core.now() < until->second) return true;
    return cut.contains({from, to}) || cut.contains({from, from}) || cut.contains({to, to});
  }
  bool unreachable(const std::string& a, const std::string& b) const { return blocked(a, b) || blocked(b, a); }
  const net_link* link(const std::string& from, const std::string& to) const {
    const auto found = links.find({from, to});
    return found == links.end() ? nullptr : &found->second;
  }
  void release_soon();  // what a partition held arrives
  void add(const std::shared_ptr<detail::sim_connection>& c);
  host* up(const detail::sim_domain& domain);  // null: it has gone
};

}  // namespace cokv::sim

namespace cokv::detail {

// A host goes: its doors close, its connections break.
void remove_sim_host(sim_domain& domain);

}  // namespace cokv::detail
