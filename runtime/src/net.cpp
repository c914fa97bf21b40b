#include "cokv/runtime/net.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <tuple>

#include "cokv/runtime/detail/run_as_operation.hpp"
#include "local_net.hpp"
#include "low_water.hpp"
#include "services.hpp"
#include "socket_now.hpp"
#include "tcp.hpp"

namespace cokv {
namespace {

using asio::ip::tcp;

using detail::to_endpoint;

// Asio copies the sequence it is given into its operation; this one stays as small as the common case of one buffer.
template <class Buffer>
struct view {
  const Buffer* first;
  const Buffer* last;
  using value_type = Buffer;
  using const_iterator = const Buffer*;
  const Buffer* begin() const { return first; }
  const Buffer* end() const { return last; }
};

class tcp_stream final : public byte_stream::impl {
 public:
  explicit tcp_stream(tcp::socket socket) : socket_(std::move(socket)) {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.non_blocking(true, ignored);  // for write_now and read_now
    peer_ = to_endpoint(socket_.remote_endpoint(ignored)).to_string();
  }

  asio::any_io_executor get_executor() const noexcept override {
    return const_cast<tcp::socket&>(socket_).get_executor();
  }

  // The lists live here, not in the operation: there is one read and one write at a time, and the operation looks at
  // its buffers only while the socket is there.
  void read_some(const byte_stream::mutable_buffers& into, byte_stream::handler done) override {
    into_ = into;
    low_water_.before_read(into_.bytes());
    at_once_ = 0;  // the read before it took a turn of the loop
    if (into_.size() == 1) return socket_.async_read_some(*into_.begin(), std::move(done));
    socket_.async_read_some(view<asio::mutable_buffer>{into_.begin(), into_.end()}, std::move(done));
  }
  void write_some(const byte_stream::const_buffers& from, byte_stream::handler done) override {
    from_ = from;
    at_once_ = 0;
    if (from_.size() == 1) return socket_.async_write_some(*from_.begin(), std::move(done));
    socket_.async_write_some(view<asio::const_buffer>{from_.begin(), from_.end()}, std::move(done));
  }

  result<std::size_t> write_now(const byte_stream::const_buffers& from) override {
    if (at_once_ >= turn_bytes) return error_code(asio::error::would_block);
    return count(detail::send_now(socket_.native_handle(), from));
  }
  result<std::size_t> read_now(const byte_stream::mutable_buffers& into) override {
    if (at_once_ >= turn_bytes) return error_code(asio::error::would_block);
    const auto n = count(detail::receive_now(socket_.native_handle(), into));
    if (n) low_water_.expect(0);
    return n;
  }

  void expect(std::size_t bytes) override { low_water_.expect(bytes); }

  void shutdown_send() override {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
  }
  void close() override {
    error_code ignored;
    low_water_.close();
    socket_.close(ignored);
  }
  bool is_open() const override { return socket_.is_open(); }
  bool quiet() override { return detail::nothing_came(socket_.native_handle()); }
  std::string peer() const override { return peer_; }

 private:
  static constexpr std::size_t turn_bytes = 1 << 20;
  static constexpr std::size_t call_bytes = 4 << 10;  // what a system call counts for at least

  result<std::size_t> count(result<std::size_t> moved) {
    if (moved) at_once_ += std::max(*moved, call_bytes);
    return moved;
  }

  tcp::socket socket_;
  detail::low_water low_water_{socket_};
  std::string peer_;
  byte_stream::mutable_buffers into_;
  byte_stream::const_buffers from_;
  std::size_t at_once_ = 0;  // bytes since the last turn of the loop
};

class tcp_listener final : public listener::impl {
 public:
  explicit tcp_listener(tcp::acceptor acceptor) : acceptor_(std::move(acceptor)) {}

  asio::any_io_executor get_executor() const noexcept override {
    return const_cast<tcp::acceptor&>(acceptor_).get_executor();
  }

  void accept(listener::handler done) override {
    auto slot = asio::get_associated_cancellation_slot(done);
    auto ex = asio::get_associated_executor(done, asio::any_completion_executor(get_executor()));
    acceptor_.async_accept(asio::bind_cancellation_slot(
        slot, asio::bind_executor(ex, [done = std::move(done)](error_code ec, tcp::socket socket) mutable {
          if (ec) return std::move(done)(ec, byte_stream());
          std::move(done)(ec, detail::make_tcp_stream(std::move(socket)));
        })));
  }

  endpoint local_endpoint() const override {
    error_code ignored;
    return to_endpoint(acceptor_.local_endpoint(ignored));
  }
  void close() override {
    error_code ignored;
    acceptor_.close(ignored);
  }

 private:
  tcp::acceptor acceptor_;
};

// Loopback and addresses need no resolver, which would start a thread.
std::optional<asio::ip::address> known_address(const std::string& host) {
  if (host.empty() || host == "localhost") return asio::ip::address_v4::loopback();
  error_code ec;
  auto address = asio::ip::make_address(host, ec);
  if (ec) return {};
  return address;
}

// Asio's resolver has no cancellation slot of its own.
template <class Token>
auto async_resolve(tcp::resolver& resolver, std::string host, std::string port, Token&& token) {
  return asio::async_compose<Token, void(error_code, tcp::resolver::results_type)>(
      [&resolver, host, port, started = false](auto& self, error_code ec = {},
                                               tcp::resolver::results_type found = {}) mutable {
        if (started) {
          self.get_cancellation_state().slot().clear();
          return self.complete(ec, std::move(found));
        }
        started = true;
        self.reset_cancellation_state(asio::enable_total_cancellation());
        if (auto slot = self.get_cancellation_state().slot(); slot.is_connected())
          slot.assign([&resolver](asio::cancellation_type_t) { resolver.cancel(); });
        resolver.async_resolve(host, port, std::move(self));
      },
      token, resolver);
}

awaitable<result<byte_stream>> connect(asio::any_io_executor ex, endpoint to) {
  co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
  co_await asio::this_coro::throw_if_cancelled(false);
  if (to.is_local()) co_return co_await detail::connect_local(ex, std::move(to));
  std::vector<tcp::endpoint> candidates;
  if (auto address = known_address(to.host)) {
    candidates.emplace_back(*address, to.port);
  } else {
    tcp::resolver resolver(ex);
    auto [ec, found] =
        co_await async_resolve(resolver, to.host, std::to_string(to.port), asio::as_tuple(asio::deferred));
    if (ec) co_return ec;
    for (const auto& entry : found) candidates.push_back(entry.endpoint());
  }
  // Not by asio::async_connect over all of them: it takes a socket that could not be opened for a connect that was cancelled.
  error_code why = asio::error::host_not_found;
  for (const auto& candidate : candidates) {
    tcp::socket socket(ex);
    socket.open(candidate.protocol(), why);
    if (!why) std::tie(why) = co_await socket.async_connect(candidate, asio::as_tuple(asio::deferred));
    if (!why) co_return detail::make_tcp_stream(std::move(socket));
    if (why == asio::error::operation_aborted) break;
  }
  co_return why;
}

class real_network final : public network::impl {
 public:
  explicit real_network(asio::any_io_executor ex) : ex_(std::move(ex)) {}

  result<listener> listen(const endpoint& at, int backlog) override {
    if (at.is_local()) return detail::listen_local(ex_, at, backlog);
    auto acceptor = detail::open_tcp_acceptor(ex_, at, backlog);
    if (!acceptor) return acceptor.error();
    return listener(std::make_unique<tcp_listener>(std::move(*acceptor)));
  }

  void connect(endpoint to, network::connect_handler done) override {
    detail::run_as_operation(ex_, cokv::connect(ex_, std::move(to)), std::move(done));
  }

  void shutdown() override {}

 private:
  asio::any_io_executor ex_;
};

}  // namespace

namespace detail {

endpoint to_endpoint(const tcp::endpoint& e) { return {e.address().to_string(), e.port()}; }

byte_stream make_tcp_stream(tcp::socket socket) { return byte_stream(std::make_unique<tcp_stream>(std::move(socket))); }

result<tcp::acceptor> open_tcp_acceptor(const asio::any_io_executor& ex, const endpoint& at, int backlog) {
  error_code ec;
  tcp::endpoint local;
  if (auto address = known_address(at.host)) {
    local = {*address, at.port};
  } else {
    tcp::resolver resolver(ex);
    auto found = resolver.resolve(at.host, std::to_string(at.port), tcp::resolver::passive, ec);
    if (ec) return ec;
    local = found.begin()->endpoint();
  }
  tcp::acceptor acceptor(ex);
  acceptor.open(local.protocol(), ec);
  if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor.bind(local, ec);
  if (!ec) acceptor.listen(backlog, ec);
  if (ec) return ec;
  return acceptor;
}

}  // namespace detail

network& network::of(const asio::any_io_executor& ex) {
  auto& self = asio::use_service<network>(asio::query(ex, asio::execution::context));
  if (!self.impl_) {
    self.ex_ = detail::service_executor(ex);
    self.impl_ = std::make_unique<real_network>(self.ex_);
  }
  return self;
}

}  // namespace cokv
