#include "net.hpp"

#include <fcntl.h>

#include <system_error>

#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "services.hpp"

namespace cokv::detail {
namespace {

class sim_byte_stream final : public byte_stream::impl {
 public:
  sim_byte_stream(std::shared_ptr<sim_connection> c, int side) : connection_(std::move(c)), side_(side) {}
  ~sim_byte_stream() override { close(); }

  asio::any_io_executor get_executor() const noexcept override {
    return sim_context::executor_type(connection_->domain(side_));
  }
  void read_some(const byte_stream::mutable_buffers& into, byte_stream::handler done) override {
    connection_->read(side_, into, std::move(done));
  }
  void write_some(const byte_stream::const_buffers& from, byte_stream::handler done) override {
    connection_->write(side_, from, std::move(done));
  }
  result<std::size_t> write_now(const byte_stream::const_buffers& from) override {
    return connection_->write_now(side_, from);
  }
  result<std::size_t> read_now(const byte_stream::mutable_buffers& into) override {
    return connection_->read_now(side_, into);
  }
  void shutdown_send() override { connection_->shutdown_send(side_); }
  void close() override {
    if (!detached_) connection_->close(side_);
  }
  bool is_open() const override { return !detached_ && connection_->is_open(side_); }
  bool quiet() override { return !detached_ && connection_->quiet(side_); }
  std::string peer() const override { return connection_->peer(side_); }
  bool carries_descriptors() const override { return connection_->local(); }
  void attach(byte_stream::descriptor d) override {
    if (!connection_->local()) return;
    // What arrives is another descriptor of the same file, as the system makes one.
    const int fd = ::fcntl(*d, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) throw std::system_error(errno, std::system_category(), "a descriptor to pass");
    connection_->attach(side_, memory_handle::of_descriptor(fd, 0, 0).file);
  }
  byte_stream::descriptor take_attached() override { return connection_->take_attached(side_); }
  // The other end has the connection too; without it there is nothing to close.
  byte_stream::descriptor detach() override {
    if (!connection_->local() || !is_open()) return {};
    detached_ = true;
    return {new int(-1), [c = std::weak_ptr(connection_), side = side_](const int* none) {
              if (const auto connection = c.lock()) connection->close(side);
              delete none;
            }};
  }

 private:
  std::shared_ptr<sim_connection> connection_;
  int side_;
  bool detached_ = false;
};

// Paths are the whole machine's, that is, the simulation's.
std::pair<std::string, std::uint16_t> door_key(const sim_domain& domain, const endpoint& at) {
  return {at.is_local() ? at.host : domain.host, at.port};
}

class sim_listener final : public listener::impl {
 public:
  sim_listener(sim::net::state& net, sim_domain& domain, std::shared_ptr<sim_door> door)
      : net_(net), domain_(domain), door_(std::move(door)) {}
  ~sim_listener() override { close(); }

  asio::any_io_executor get_executor() const noexcept override { return sim_context::executor_type(domain_); }
  void accept(listener::handler done) override {
    initiate<void(error_code, byte_stream)>(std::move(done), get_executor(), [this](accept_operation& op) {
      if (!door_->open) return op.fail(asio::error::operation_aborted);
      if (door_->waiting.empty()) return door_->acceptors.push_back(op);
      byte_stream stream = std::move(door_->waiting.front());
      door_->waiting.pop_front();
      op.complete({}, std::move(stream));
    });
  }
  endpoint local_endpoint() const override { return door_->at; }
  void close() override {
    if (!door_->open) return;
    door_->open = false;
    net_.doors.erase(door_key(domain_, door_->at));
    door_->waiting.clear();
    door_->acceptors.complete_all(asio::error::operation_aborted);
  }

 private:
  sim::net::state& net_;
  sim_domain& domain_;
  std::shared_ptr<sim_door> door_;
};

// A connect under way waits for one timer at a time.
struct connect_state {
  sim_context* core = nullptr;
  sim_context::timer_id timer;

  connect_state() = default;
  connect_state(const connect_state&) = delete;
  connect_state& operator=(const connect_state&) = delete;
  ~connect_state() {
    if (core) core->cancel(timer);
  }
};
using connect_operation = operation<void(error_code, byte_stream), connect_state>;

bool means_this_host(const std::string& name) {
  return name.empty() || name == "localhost" || name == "127.0.0.1" || name == "::1";
}

class sim_network final : public network::impl {
 public:
  sim_network(sim::net::state& net, sim_domain& domain) : net_(net), domain_(domain) {}

  result<listener> listen(const endpoint& at, int backlog) override {
    if (at.is_local()) return open(at, backlog);
    bool here = means_this_host(at.host) || at.host == "0.0.0.0" || at.host == "::" || at.host == domain_.host;
    if (!here && net_.hosts.contains(at.host))
      return error_code(boost::system::errc::address_not_available, boost::system::system_category());
    if (!here) return error_code(asio::error::host_not_found);
    std::uint16_t port = at.port;
    if (port == 0)
      while (net_.doors.contains({domain_.host, port = net_.next_port++})) {
      }
    const bool any = at.host.empty() || at.host == "0.0.0.0" || at.host == "::";
    return open({any ? "localhost" : at.host, port}, backlog);
  }

  void connect(endpoint to, network::connect_handler done) override {
    asio::any_io_executor ex = sim_context::executor_type(domain_);
    if (means_this_host(to.host)) to.host = domain_.host;
    initiate<void(error_code, byte_stream), connect_state>(
        std::move(done), ex, [this, to = std::move(to)](connect_operation& op) mutable {
          op.state().core = &net_.core;
          const auto way = net_.latency(domain_.host, to.host);
          after(op, way, [this, &op, to = std::move(to)] { ask(op, to); });
        });
  }

  void shutdown() override { remove_sim_host(domain_); }

 private:
  result<listener> open(endpoint at, int backlog) {
    auto door = std::make_shared<sim_door>();
    door->domain = &domain_;
    door->at = std::move(at);
    door->backlog = static_cast<std::size_t>(std::max(backlog, 1));
    if (!net_.doors.emplace(door_key(domain_, door->at), door).second) return error_code(asio::error::address_in_use);
    if (auto* here = net_.up(domain_)) here->doors.add(door);
    return listener(std::make_unique<sim_listener>(net_, domain_, std::move(door)));
  }

  template <class F>
  void after(connect_operation& op, duration d, F then) {
    op.state().timer = net_.core.at(net_.core.now() + d, domain_, std::move(then));
  }

  void fail_after(connect_operation& op, duration d, error_code ec) {
    after(op, d, [&op, ec] { op.fail(ec); });
  }

  // The request is at its host.
  void ask(connect_operation& op, const endpoint& to) {
    if (to.is_local()) return ask_local(op, to);
    if (net_.unreachable(domain_.host, to.host)) {
      ++net_.of.counts.timeouts;
      return fail_after(op, net_.of.faults.connect_timeout, asio::error::timed_out);
    }
    auto host = net_.hosts.find(to.host);
    auto door = net_.doors.find({to.host, to.port});
    if (host == net_.hosts.end() && !known_once(to.host))
      return fail_after(op, net_.latency(to.host, domain_.host), asio::error::host_not_found);
    if (host == net_.hosts.end() || door == net_.doors.end() || door->second->waiting.size() >= door->second->backlog ||
        net_.core.chance(net_.of.faults.refuse)) {
      ++net_.of.counts.refused;
      return fail_after(op, net_.latency(to.host, domain_.host), asio::error::connection_refused);
    }
    join(op, *door->second, endpoint{domain_.host, net_.next_port++}.to_string(), to.to_string());
  }

  void ask_local(connect_operation& op, const endpoint& to) {
    auto door = net_.doors.find({to.host, 0});
    if (door == net_.doors.end() || door->second->waiting.size() >= door->second->backlog) {
      ++net_.of.counts.refused;
      return fail_after(op, net_.of.faults.latency_min, asio::error::connection_refused);
    }
    join(op, *door->second, to.host, to.host);
  }

  void join(connect_operation& op, sim_door& at, std::string name, std::string peer) {
    ++net_.of.counts.connections;
    auto connection =
        std::make_shared<sim_connection>(net_, domain_, *at.domain, std::move(name), std::move(peer), at.at.is_local());
    net_.add(connection);
    byte_stream client(std::make_unique<sim_byte_stream>(connection, 0)),
        server(std::make_unique<sim_byte_stream>(connection, 1));
    if (at.acceptors.empty())
      at.waiting.push_back(std::move(server));
    else
      at.acceptors.front().complete({}, std::move(server));
    after(op, net_.latency(at.domain->host, domain_.host),
          [&op, client = std::move(client)]() mutable { op.complete({}, std::move(client)); });
  }

  bool known_once(const std::string& host) const { return net_.names.contains(host); }

  sim::net::state& net_;
  sim_domain& domain_;
};

// The one of a context, so that it goes with it.
class net_service final : public asio::execution_context::service {
 public:
  inline static asio::execution_context::id id;
  explicit net_service(asio::execution_context& c) : service(c) {}
  sim::net& get(sim_context& core) {
    if (!net_) net_ = std::make_unique<sim::net>(core);
    return *net_;
  }

 private:
  void shutdown() override {}
  std::unique_ptr<sim::net> net_;
};

}  // namespace

void add_sim_network(sim_domain& domain) {
  auto& net = sim::net::of(domain.core).get_state();
  net.hosts.insert_or_assign(domain.host, sim::net::state::host{&domain});
  net.names.insert(domain.host);
  asio::add_service(domain.context, new network(domain.context, sim_context::executor_type(domain),
                                                std::make_unique<sim_network>(net, domain)));
}

void remove_sim_host(sim_domain& domain) {
  auto& net = sim::net::of(domain.core).get_state();
  auto* up = net.up(domain);
  if (!up) return;
  const auto gone = std::move(*up);
  net.hosts.erase(domain.host);
  gone.doors.each([&](sim_door& door) {
    if (std::exchange(door.open, false)) net.doors.erase(door_key(domain, door.at));
  });
  gone.connections.each([&](sim_connection& c) {
    for (int side : {0, 1})
      if (&c.domain(side) == &domain) c.lose(side);
  });
}

}  // namespace cokv::detail

namespace cokv::sim {

net::net(sim_context& context) : state_(std::make_unique<state>(context, *this)) {}
net::~net() = default;

net& net::of(sim_context& context) { return asio::use_service<detail::net_service>(context).get(context); }

void net::state::add(const std::shared_ptr<detail::sim_connection>& c) {
  connections.add(c);
  if (auto* client = up(c->domain(0))) client->connections.add(c);
  if (auto* server = up(c->domain(1)); server && &c->domain(0) != &c->domain(1)) server->connections.add(c);
}

net::state::host* net::state::up(const detail::sim_domain& domain) {
  const auto found = hosts.find(domain.host);
  return found != hosts.end() && found->second.domain == &domain ? &found->second : nullptr;
}

void net::state::release_soon() {
  connections.each([&](detail::sim_connection& c) {
    core.at(core.now() + of.faults.latency_min, core.home(), [self = c.shared_from_this()] { self->release(); });
  });
}

void net::partition(const std::string& a, const std::string& b) {
  partition_one_way(a, b);
  partition_one_way(b, a);
}

void net::partition_one_way(const std::string& from, const std::string& to) { state_->cut.insert({from, to}); }

void net::isolate(const std::string& host) { partition(host, host); }

void net::heal(const std::string& a, const std::string& b) {
  state_->cut.erase({a, b});
  state_->cut.erase({b, a});
  state_->release_soon();
}

void net::heal() {
  state_->cut.clear();
  state_->release_soon();
}

// Beside partitions, not instead of them: the end of the one is not the end of the other.
void net::clog(const std::string& a, const std::string& b, duration for_how_long) {
  auto& core = state_->core;
  const auto until = core.now() + for_how_long;
  for (const auto& d : {state::direction(a, b), state::direction(b, a)}) {
    auto& so_far = state_->clogged[d];
    so_far = std::max(so_far, until);
  }
  core.at(until, core.home(), [this] { state_->release_soon(); });
}

void net::set_link(const std::string& a, const std::string& b, const net_link& link) {
  state_->links[{a, b}] = state_->links[{b, a}] = link;
}

void net::clear_link(const std::string& a, const std::string& b) {
  state_->links.erase({a, b});
  state_->links.erase({b, a});
}

void net::reset_connections(const std::string& a, const std::string& b) {
  state_->connections.each([&](detail::sim_connection& c) {
    if (c.joins(a, b)) c.reset(0);
  });
}

void net::reset_connections(const std::string& host) {
  state_->connections.each([&](detail::sim_connection& c) {
    for (int side : {0, 1})
      if (!c.local() && c.domain(side).host == host) return c.reset(side);
  });
}

}  // namespace cokv::sim
