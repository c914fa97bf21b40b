// A server and raw clients in one coroutine, on the real context or in virtual time.
#pragma once

#include <doctest/doctest.h>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "http/server.hpp"

namespace cokv::test {

namespace bh = boost::beast::http;
using namespace std::chrono_literals;
using response = bh::response<bh::string_body>;

inline awaitable<void> pause(duration d) {
  co_await clock::of(co_await asio::this_coro::executor).async_wait_for(d, asio::deferred);
}

// A connection that sends what it is told, well-formed or not.
class raw_client {
 public:
  static awaitable<raw_client> connect(endpoint to) {
    auto& net = network::of(co_await asio::this_coro::executor);
    co_return raw_client(co_await net.async_connect(to, asio::use_awaitable));
  }
  explicit raw_client(byte_stream s) : stream(std::move(s)) {}

  awaitable<error_code> send(std::string bytes) {
    auto [ec, n] = co_await asio::async_write(stream, asio::buffer(bytes), asio::as_tuple(asio::deferred));
    co_return ec;
  }
  // The next response; a result of 599 stands for a connection that ended instead.
  awaitable<response> read(bool of_head = false) {
    bh::response_parser<bh::string_body> parser;
    parser.body_limit(boost::none);
    parser.skip(of_head);
    auto [ec, n] = co_await bh::async_read(stream, ahead, parser, asio::as_tuple(asio::deferred));
    if (!ec) co_return parser.release();
    response gone;
    gone.result(599);
    gone.body() = ec.message();
    co_return gone;
  }
  awaitable<response> ask(std::string request, bool of_head = false) {
    co_await send(std::move(request));
    co_return co_await read(of_head);
  }
  // Whether the peer has ended the connection, waited for.
  awaitable<bool> ended() {
    if (ahead.size() != 0) co_return false;
    char c;
    auto [ec, n] = co_await stream.async_read_some(asio::buffer(&c, 1), asio::as_tuple(asio::deferred));
    co_return bool(ec);
  }

  byte_stream stream;
  boost::beast::flat_buffer ahead;
};

inline std::string get(std::string_view path, std::string_view fields = "") {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: x\r\n" + std::string(fields) + "\r\n";
}
inline std::string post(std::string_view path, std::string_view body, std::string_view fields = "") {
  return "POST " + std::string(path) + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n" + std::string(fields) + "\r\n" + std::string(body);
}

struct site {
  http::server server;
  endpoint at;
  awaitable<raw_client> connect() { return raw_client::connect(at); }
  awaitable<response> ask(std::string request, bool of_head = false) {
    auto c = co_await connect();
    co_return co_await c.ask(std::move(request), of_head);
  }
};

// Sets up a server with `routes`, runs `body`, drains the server. `swept`: it may be cancelled from outside.
template <class Routes, class Body>
awaitable<void> with_site(http::server_options options, Routes routes, Body body, bool swept = false) {
  auto ex = co_await asio::this_coro::executor;
  site s{http::server(ex, std::move(options)), {}};
  routes(s.server);
  s.server.listen({"127.0.0.1", 0});
  s.at = s.server.local_endpoint();
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn(s.server.run());
    co_await body(s);
    s.server.drain(0s);
  });
  const bool cancelled = swept && v.error() == asio::error::operation_aborted;
  CHECK_MESSAGE((v || cancelled), v.error().message());
  CHECK(s.server.connections() == 0);
}

template <class Main>
void on_real_context(Main main) {
  asio::io_context context(1);
  std::exception_ptr failed;
  bool ended = false;
  asio::co_spawn(context, main(), [&](std::exception_ptr e) {
    failed = e;
    ended = true;
  });
  context.run();
  if (failed) std::rethrow_exception(failed);
  CHECK(ended);
}

template <class Main>
void on_sim_context(Main main, std::uint64_t seeds = 20) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    sim_context context(seed);
    std::exception_ptr failed;
    bool ended = false;
    asio::co_spawn(context.get_executor(), main(), [&](std::exception_ptr e) {
      failed = e;
      ended = true;
    });
    context.run();
    if (failed) std::rethrow_exception(failed);
    CHECK_MESSAGE(ended, "quiescent but suspended");
  }
}

template <class Main>
void on_both_contexts(Main main) {
  SUBCASE("real") { on_real_context(main); }
  SUBCASE("simulated") { on_sim_context(main); }
}

}  // namespace cokv::test
