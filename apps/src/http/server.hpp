// An HTTP/1.1 server over the network seam: real sockets on an io_context, simulated ones in virtual time on a
// sim_context. Routes, limits and deadlines, keep-alive and pipelining, API keys, cancellation of handlers whose
// client has gone, and a drain that lets requests in flight finish.
//
//     http::server server(context.get_executor(), {.keys = api_keys::load("keys.txt")});
//     server.route(verb::get, "/healthz", healthz, {.open = true});
//     server.listen({"127.0.0.1", 8080});                 // config_error: the port is in use
//     asio::co_spawn(context, server.run(), asio::detached);
//     ...
//     server.drain(10s);                                  // run() returns when the last request has been answered
//
// A server belongs to its context and is used from the context's thread. Handlers run there as coroutines; they and
// what they captured live until the last connection has ended.
#pragma once

#include <functional>
#include <list>
#include <memory>

#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/tls.hpp"
#include "cokv/runtime/with.hpp"
#include "http/api_keys.hpp"
#include "http/exchange.hpp"
#include "http/router.hpp"

namespace cokv::http {

using handler = std::function<awaitable<void>(exchange&)>;

// Asked of each request whose sender is known, before its route is looked at: what it is refused with.
using admission = std::function<std::optional<problem>(const exchange&, time_point now)>;

struct route_options {
  std::optional<std::uint64_t> body_bytes = {};  // instead of limits::body_bytes
  bool open = false;                             // needs no API key
  std::uint8_t any_of = 0;                       // rights of which the key has one, else 403; 0: any key will do
  // What a body may be, of requests that say what theirs is; else 415. Empty: anything.
  std::vector<std::string> body_types = {};
  bool descriptors = false;  // those that come with its requests are there for the handler; elsewhere they are closed
  std::vector<std::string> query = {};  // the parameters that mean something here; any other, or one twice: 400
};

// One answered (or abandoned) request, for logs and metrics.
struct served {
  verb method;
  std::string_view route;  // the pattern; empty: none matched
  status code;             // unknown: the client went before it was answered
  std::uint64_t bytes_in, bytes_out;
  duration took;
};

struct server_options {
  limits limit = {};
  api_keys keys = {};
  tls_context tls = {};  // empty: plain HTTP
  std::function<void(const served&)> observe = {};
  std::function<void()> handshake_failed = {};  // a client that came to no TLS
};

namespace detail {

struct target {
  handler run;
  route_options options;
  std::string pattern;
};

class connection;

// Shared by the server and its connections, so that either may be destroyed first.
struct server_state {
  server_state(asio::any_io_executor e, server_options o) : ex(std::move(e)), options(std::move(o)), changed(ex, 1) {}

  asio::any_io_executor ex;
  server_options options;
  router<std::shared_ptr<const target>> routes;
  admission admit;
  listener accepting;
  std::list<connection*> connections;
  std::size_t running = 0;
  std::size_t handshakes = 0;
  std::uint64_t failed_handshakes = 0;
  bool draining = false;
  pressure now;
  time_point drain_until{};
  channel<bool> changed;  // a connection has ended or become idle, or drain() was called
};

}  // namespace detail

class server {
 public:
  explicit server(asio::any_io_executor ex, server_options options = {});

  void route(verb method, std::string_view pattern, handler h, route_options options = {});

  void admit(admission by) { state_->admit = std::move(by); }

  // Who may do what, from the next request on, also on connections that are open.
  void set_keys(api_keys keys) { state_->options.keys = std::move(keys); }

  // The certificate that new connections are shown.
  void set_tls(tls_context tls) { state_->options.tls = std::move(tls); }
  bool secure() const { return bool(state_->options.tls); }
  std::uint64_t failed_handshakes() const { return state_->failed_handshakes; }

  // Binds now. config_error when it can't, naming the address; `flag` starts that line.
  void listen(const endpoint& at, std::string_view flag = "--listen");
  void listen(listener from) { state_->accepting = std::move(from); }  // of the server's context
  endpoint local_endpoint() const { return state_->accepting.local_endpoint(); }

  // Accepts and serves until drained or cancelled; returns after the last connection has ended.
  awaitable<void> run();

  // Stops accepting, closes idle connections and lets requests in flight finish for `grace`. The rest is cancelled: a
  // request without an answer gets 503, a started answer ends with its exchange's last_words(), and one warning says
  // how many there were. May be called again with a shorter grace.
  void drain(duration grace);

  std::size_t connections() const { return state_->connections.size(); }
  std::size_t requests_running() const { return state_->running; }

 private:
  std::shared_ptr<detail::server_state> state_;
};

}  // namespace cokv::http
