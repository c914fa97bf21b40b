// Beast's HTTP client and server, unchanged, over the simulated network.
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <set>

#include "cokv/runtime/net.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace std::chrono_literals;
namespace beast = boost::beast;
namespace http = beast::http;

namespace {

constexpr auto tuple = asio::as_tuple(asio::deferred);

std::string body_of(int i, std::size_t size) {
  std::string body(size, ' ');
  unsigned x = static_cast<unsigned>(i) * 2654435761u + 1;
  for (char& c : body) c = static_cast<char>('a' + ((x = x * 1103515245 + 12345) >> 16) % 26);
  return body;
}

// Answers with the request's body twice: plainly on even requests, in chunks on odd ones.
awaitable<void> session(byte_stream stream) {
  beast::flat_buffer buffer;
  for (int i = 0;; ++i) {
    http::request<http::string_body> request;
    if (auto [ec, n] = co_await http::async_read(stream, buffer, request, tuple); ec) co_return;
    http::response<http::string_body> response{http::status::ok, 11};
    response.keep_alive(request.keep_alive());
    response.body() = request.body() + request.body();
    if (i % 2 == 0)
      response.prepare_payload();
    else
      response.chunked(true);
    if (auto [ec, n] = co_await http::async_write(stream, response, tuple); ec) co_return;
    if (!request.keep_alive()) {
      stream.shutdown_send();
      co_return;
    }
  }
}

awaitable<void> serve(asio::any_io_executor ex, listener& door) {
  for (;;) {
    auto [ec, stream] = co_await door.async_accept(tuple);
    if (ec) co_return;
    asio::co_spawn(ex, session(std::move(stream)), asio::detached);
  }
}

// Requests over one connection; the bodies go out from a serializer, the answers come in header first.
awaitable<error_code> client(asio::any_io_executor ex, endpoint to, int requests, int& answered) {
  auto [ec, stream] = co_await network::of(ex).async_connect(std::move(to), tuple);
  if (ec) co_return ec;
  beast::flat_buffer buffer;
  for (int i = 0; i < requests; ++i) {
    http::request<http::string_body> request{http::verb::put, "/v1/kv/a/b", 11};
    request.body() = body_of(i, 100 + static_cast<std::size_t>(i) * 3000);
    request.keep_alive(i + 1 < requests);
    request.prepare_payload();
    http::request_serializer<http::string_body> serializer(request);
    if (auto [wec, n] = co_await http::async_write(stream, serializer, tuple); wec) co_return wec;
    http::response_parser<http::string_body> parser;
    if (auto [rec, n] = co_await http::async_read_header(stream, buffer, parser, tuple); rec) co_return rec;
    CHECK(parser.chunked() == (i % 2 == 1));
    if (auto [rec, n] = co_await http::async_read(stream, buffer, parser, tuple); rec) co_return rec;
    CHECK(parser.get().body() == request.body() + request.body());
    ++answered;
  }
  co_return error_code();
}

struct report {
  error_code ec;
  int answered = 0;
  std::uint64_t hash = 0;
};

report run(std::uint64_t seed, const sim::net_faults& faults, int requests = 8) {
  INFO(test::replay_command(seed));
  sim_context context(seed);
  sim::net::of(context).faults = faults;
  asio::any_io_executor ex = context.get_executor();
  report r;
  bool finished = false;
  {
    auto door = network::of(ex).listen({"", 80}).value();
    asio::co_spawn(ex, serve(ex, door), asio::detached);
    asio::co_spawn(ex, client(ex, {"localhost", 80}, requests, r.answered), [&](std::exception_ptr e, error_code ec) {
      CHECK(!e);
      finished = true;
      r.ec = ec;
      door.close();
    });
    CHECK(context.run() == sim_context::outcome::done);  // nobody is left hanging, the server neither
  }
  CHECK(finished);
  r.hash = context.trace_hash();
  return r;
}

}  // namespace

TEST_CASE("keep-alive and chunked bodies over short reads and writes") {
  for (auto seed : test::seeds(500)) {
    auto r = run(seed, {.short_transfer = 0.7});
    CHECK(!r.ec);
    CHECK(r.answered == 8);
  }
}

TEST_CASE("the same seed gives the same trace of HTTP, other seeds other traces") {
  std::set<std::uint64_t> hashes;
  for (auto seed : test::seeds(500)) {
    auto a = run(seed, {.reset = 0.01}), b = run(seed, {.reset = 0.01});
    CHECK(a.hash == b.hash);
    CHECK(a.answered == b.answered);
    hashes.insert(a.hash);
  }
  CHECK(hashes.size() == test::seeds(500).size());
}

TEST_CASE("broken connections are errors of the request, never hangs and never short answers") {
  int broken = 0;
  for (auto seed : test::seeds(500)) {
    auto r = run(seed, {.short_transfer = 0.5, .reset = 0.02, .refuse = 0.02, .clog = 0.02});
    CHECK((r.ec ? r.answered < 8 : r.answered == 8));
    broken += !!r.ec;
  }
  if (!test::one_seed()) {
    const int all = static_cast<int>(test::seeds(500).size());
    CHECK(broken > all / 5);
    CHECK(broken < all * 99 / 100);
  }
}

TEST_CASE("HTTP survives cancellation and destruction at every step") {
  auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    auto door = network::of(ex).listen({"", 80}).value();
    auto one = [](listener& door) -> awaitable<void> {
      auto [ec, stream] = co_await door.async_accept(tuple);
      if (!ec) co_await session(std::move(stream));
    };
    int answered = 0;
    co_await asio::experimental::make_parallel_group(
        asio::co_spawn(ex, one(door), asio::deferred),
        asio::co_spawn(ex, client(ex, {"", 80}, 2, answered), asio::deferred))
        .async_wait(asio::experimental::wait_for_all(), asio::deferred);
  };
  test::cancel_at_every_step(body);
  test::destroy_at_every_step(body);
}
