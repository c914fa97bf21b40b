#include "cokv/runtime/detail/initiate.hpp"
#include "net.hpp"

namespace cokv::detail {

sim_connection::sim_connection(sim::net::state& net, sim_domain& client, sim_domain& server, std::string client_name,
                               std::string server_name, bool local)
    : net_(net), local_(local) {
  ends_[0].domain = &client;
  ends_[0].name = std::move(client_name);
  ends_[1].domain = &server;
  ends_[1].name = std::move(server_name);
}

bool sim_connection::blocked(int to) const { return !local_ && net_.blocked(host(1 - to), host(to)); }

byte_stream::descriptor sim_connection::take_attached(int side) {
  auto& waiting = ends_[side].descriptors;
  if (waiting.empty()) return {};
  auto d = std::move(waiting.front());
  waiting.pop_front();
  return d;
}

bool sim_connection::joins(const std::string& a, const std::string& b) const {
  return !local_ && ((host(0) == a && host(1) == b) || (host(0) == b && host(1) == a));
}

void sim_connection::note(int to, std::string what, time_point arrives) const {
  if (net_.recorder.enabled())
    net_.recorder.add(
        {"net " + ends_[1 - to].name + " > " + ends_[to].name, std::move(what), net_.core.now(), arrives, {}});
}

void sim_connection::read(int side, const byte_stream::mutable_buffers& into, byte_stream::handler done) {
  asio::any_io_executor ex = sim_context::executor_type(*ends_[side].domain);
  initiate<void(error_code, std::size_t)>(std::move(done), ex, [this, side, &into](transfer_operation& op) {
    ends_[side].into = into;
    ends_[side].reader.push_back(op);
    pump_read(side);
  });
}

void sim_connection::write(int side, const byte_stream::const_buffers& from, byte_stream::handler done) {
  asio::any_io_executor ex = sim_context::executor_type(*ends_[side].domain);
  initiate<void(error_code, std::size_t)>(std::move(done), ex, [this, side, &from](transfer_operation& op) {
    ends_[side].from = from;
    ends_[side].writer.push_back(op);
    pump_write(side);
  });
}

void sim_connection::pump_read(int side) {
  end& me = ends_[side];
  if (me.reader.empty()) return;
  transfer_operation& op = me.reader.front();
  const auto n = take(side, me.into);
  if (!n && n.error() == asio::error::would_block) return;
  op.complete(n ? error_code() : n.error(), n ? *n : 0);
  if (n && *n != 0) pump_write(1 - side);
}

result<std::size_t> sim_connection::read_now(int side, const byte_stream::mutable_buffers& into) {
  if (net_.core.chance(0.5)) return error_code(asio::error::would_block);
  const auto n = take(side, into);
  if (n && *n != 0) pump_write(1 - side);
  return n;
}

result<std::size_t> sim_connection::take(int side, const byte_stream::mutable_buffers& into) {
  end& me = ends_[side];
  if (!me.open) return error_code(asio::error::bad_descriptor);
  if (me.failed) return me.failed;
  if (into.bytes() == 0) return std::size_t(0);
  std::size_t n = std::min(me.arrived.size() - me.taken, into.bytes());
  if (n == 0) return me.last_arrived ? error_code(asio::error::eof) : error_code(asio::error::would_block);
  if (n > 1 && net_.core.chance(net_.of.faults.short_transfer)) {
    n = 1 + net_.core.below(n - 1);
    ++net_.of.counts.short_transfers;
  }
  asio::buffer_copy(into, asio::buffer(me.arrived.data() + me.taken, n));
  me.taken += n;
  if (me.taken == me.arrived.size()) {
    me.arrived.clear();
    me.taken = 0;
  } else if (me.taken > net_.of.faults.socket_buffer) {
    me.arrived.erase(me.arrived.begin(), me.arrived.begin() + static_cast<std::ptrdiff_t>(me.taken));
    me.taken = 0;
  }
  return n;
}

bool sim_connection::quiet(int side) const {
  const end& me = ends_[side];
  return me.open && !me.failed && me.taken == me.arrived.size() && !me.last_arrived;
}

void sim_connection::pump_write(int side) {
  end& me = ends_[side];
  if (me.writer.empty()) return;
  transfer_operation& op = me.writer.front();
  const auto n = push(side, me.from);
  if (!n && me.writer.empty()) return;  // a reset completed it
  if (n || n.error() != asio::error::would_block) op.complete(n ? error_code() : n.error(), n ? *n : 0);
}

// Whether there is room is for the system to say, also when there is.
result<std::size_t> sim_connection::write_now(int side, const byte_stream::const_buffers& from) {
  if (net_.core.chance(0.5)) return error_code(asio::error::would_block);
  return push(side, from);
}

result<std::size_t> sim_connection::push(int side, const byte_stream::const_buffers& from) {
  end& me = ends_[side];
  if (!me.open) return error_code(asio::error::bad_descriptor);
  if (me.failed) return me.failed;
  end& peer = ends_[1 - side];
  if (peer.last_sent) return error_code(asio::error::broken_pipe);
  if (from.bytes() == 0) return std::size_t(0);
  const auto& faults = net_.of.faults;
  std::size_t used = peer.in_flight + peer.arrived.size() - peer.taken;
  // A writer is woken when there is room worth sending into, else transfers shrink to single bytes.
  if (used + std::min(from.bytes(), faults.socket_buffer / 4 + 1) > faults.socket_buffer && used != 0)
    return error_code(asio::error::would_block);
  std::size_t n = std::min(faults.socket_buffer - used, from.bytes());
  if (n > 1 && net_.core.chance(faults.short_transfer)) {
    n = 1 + net_.core.below(n - 1);
    ++net_.of.counts.short_transfers;
  }
  if (!local_ && net_.core.chance(faults.reset)) {
    reset(side);
    return error_code(asio::error::connection_reset);
  }
  segment s;
  s.bytes.resize(n);
  asio::buffer_copy(asio::buffer(s.bytes), from);
  s.descriptors = std::exchange(me.attached, {});
  if (!local_ && net_.core.chance(faults.flip)) {
    s.bytes[net_.core.below(n)] ^= std::byte(1 << net_.core.below(8));
    ++net_.of.counts.flips;
  }
  net_.of.counts.bytes += n;
  send(1 - side, std::move(s));
  return n;
}

void sim_connection::send(int to, segment s) {
  end& peer = ends_[to];
  const auto& faults = net_.of.faults;
  sim_context& core = net_.core;
  peer.in_flight += s.bytes.size();
  auto wire = duration(static_cast<std::int64_t>(static_cast<double>(s.bytes.size()) /
                                                 net_.bytes_per_second(host(1 - to), host(to)) * 1e9));
  peer.link_free = std::max(core.now(), peer.link_free) + wire;
  time_point when = peer.link_free + net_.latency(host(1 - to), host(to));
  if (!local_ && core.chance(faults.clog)) when += core.between(duration(0), faults.clog_max);
  peer.last_arrival = std::max(peer.last_arrival + duration(1), when);  // in order
  if (net_.recorder.enabled())
    note(to, s.bytes.empty() ? "end" : std::to_string(s.bytes.size()) + " bytes", peer.last_arrival);
  core.at(peer.last_arrival, core.home(),
          [self = shared_from_this(), to, s = std::move(s)]() mutable { self->arrive(to, std::move(s)); });
}

void sim_connection::arrive(int to, segment s) {
  end& me = ends_[to];
  if (!me.held.empty() || blocked(to)) {
    me.held.push_back(std::move(s));
    if (me.held.size() > 1) return;
    net_.core.at(net_.core.now() + net_.of.faults.give_up, net_.core.home(), [self = shared_from_this(), to] {
      if (self->ends_[to].held.empty() || !self->blocked(to)) return;
      ++self->net_.of.counts.timeouts;
      self->fail(0, asio::error::timed_out);
      self->fail(1, asio::error::timed_out);
    });
    return;
  }
  deliver(to, std::move(s));
}

void sim_connection::release() {
  for (int to : {0, 1}) {
    if (blocked(to)) continue;
    while (!ends_[to].held.empty()) {
      segment s = std::move(ends_[to].held.front());
      ends_[to].held.pop_front();
      deliver(to, std::move(s));
    }
    if (auto ec = std::exchange(ends_[to].held_failure, {})) fail(to, ec);
  }
}

void sim_connection::deliver(int to, segment s) {
  end& me = ends_[to];
  me.in_flight -= s.bytes.size();
  if (me.failed) return;
  if (!me.open) {
    if (!s.bytes.empty()) fail_later(1 - to, asio::error::connection_reset);
    return;
  }
  me.arrived.insert(me.arrived.end(), s.bytes.begin(), s.bytes.end());
  me.last_arrived |= s.last;
  for (auto& d : s.descriptors) me.descriptors.push_back(std::move(d));
  pump_read(to);
}

void sim_connection::shutdown_send(int side) {
  end& peer = ends_[1 - side];
  if (!ends_[side].open || peer.last_sent) return;
  peer.last_sent = true;
  send(1 - side, {.bytes = {}, .last = true});
}

// With bytes unread this is a reset, as TCP has it: the peer must not take them for read.
void sim_connection::close(int side) {
  end& me = ends_[side];
  if (!me.open) return;
  if (me.arrived.size() == me.taken)
    shutdown_send(side);
  else
    fail_later(1 - side, asio::error::connection_reset);
  me.open = false;
  me.reader.complete_all(asio::error::operation_aborted);
  me.writer.complete_all(asio::error::operation_aborted);
}

void sim_connection::reset(int side) {
  ++net_.of.counts.resets;
  note(1 - side, "reset", net_.core.now());
  fail(side, asio::error::connection_reset);
  fail_later(1 - side, asio::error::connection_reset);
}

void sim_connection::lose(int side) {
  ends_[side].open = false;
  fail_later(1 - side, asio::error::connection_reset);
}

void sim_connection::fail(int side, error_code ec) {
  end& me = ends_[side];
  if (me.failed) return;
  me.failed = ec;
  me.reader.complete_all(ec);
  me.writer.complete_all(ec);
}

void sim_connection::fail_later(int side, error_code ec) {
  net_.core.at(net_.core.now() + net_.latency(host(1 - side), host(side)), net_.core.home(),
               [self = shared_from_this(), side, ec] {
                 if (self->blocked(side))
                   self->ends_[side].held_failure = ec;
                 else
                   self->fail(side, ec);
               });
}

}  // namespace cokv::detail
