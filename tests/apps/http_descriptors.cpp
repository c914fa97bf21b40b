// What clients of this machine pass to a server: few, where they are wanted, and none elsewhere.
#include <sys/resource.h>
#include <unistd.h>

#include <boost/asio/connect_pipe.hpp>
#include <boost/asio/readable_pipe.hpp>
#include <boost/asio/writable_pipe.hpp>

#include "cokv/runtime/detail/passed_descriptors.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "http_fixture.hpp"
#include "support/lingering.hpp"

using namespace cokv;
using namespace cokv::test;
using http::exchange;
using http::status;
using http::verb;

namespace {

endpoint fresh_place() {
  static int n = 0;
  return endpoint::local("/tmp/cokv-passed-" + std::to_string(::getpid()) + "-" + std::to_string(++n));
}

// Passed to somebody, it tells when nobody has it any more.
struct watched {
  explicit watched(asio::any_io_executor ex) : reads(ex) {
    asio::writable_pipe writes(ex);
    asio::connect_pipe(reads, writes);
    file = memory_handle::of_descriptor(writes.release(), 0, 0).file;
  }
  awaitable<bool> closed() {
    char byte;
    auto [ec, n] = co_await reads.async_read_some(asio::buffer(&byte, 1), asio::as_tuple(asio::deferred));
    co_return ec == asio::error::eof;
  }

  asio::readable_pipe reads;
  std::shared_ptr<const int> file;
};

std::string head_of(std::string_view path, std::size_t bytes, std::string_view fields = "") {
  const auto whole = post(path, std::string(bytes, 'x'), fields);
  return whole.substr(0, whole.size() - bytes);
}

// A server on a socket of its own: /takes wants descriptors and tells how many came, /plain does not.
template <class Body>
void with_socket(http::api_keys keys, Body body) {
  http::limits limit;
  limit.header = limit.linger = 50ms;
  on_real_context([&]() -> awaitable<void> {
    const auto ex = co_await asio::this_coro::executor;
    http::server server(ex, {.limit = limit, .keys = keys});
    const auto count = [](exchange& x) -> awaitable<void> {
      if (!co_await x.read_all()) co_return;
      int n = 0;
      while (x.take_attached()) ++n;
      co_await x.respond(status::ok, "text/plain", std::to_string(n));
    };
    server.route(verb::post, "/takes", count, {.descriptors = true});
    server.route(verb::post, "/plain", count);
    server.listen(fresh_place());
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn(server.run());
      co_await body(ex, server.local_endpoint());
      server.drain(0s);
    });
    CHECK_MESSAGE(bool(v), v.error().message());
  });
}

}  // namespace

TEST_CASE("http descriptors: what comes with a request that has no use for it is closed while it is under way") {
  with_socket({}, [](asio::any_io_executor ex, endpoint at) -> awaitable<void> {
    auto c = co_await raw_client::connect(at);
    watched with_head(ex), with_body(ex), wanted(ex);
    c.stream.attach(std::move(with_head.file));
    co_await c.send(head_of("/plain", 2));
    CHECK(co_await with_head.closed());
    c.stream.attach(std::move(with_body.file));
    co_await c.send("1");
    CHECK(co_await with_body.closed());
    CHECK((co_await c.ask("2")).body() == "0");
    // The next request's are kept for it.
    c.stream.attach(std::move(wanted.file));
    co_await c.send(head_of("/takes", 2));
    CHECK((co_await c.ask("12")).body() == "1");
    CHECK(co_await wanted.closed());
  });
}

TEST_CASE("http descriptors: who may not ask for a thing has nothing kept") {
  http::api_keys keys;
  keys.add("right");
  with_socket(keys, [](asio::any_io_executor ex, endpoint at) -> awaitable<void> {
    auto c = co_await raw_client::connect(at);
    watched with_head(ex), with_body(ex);
    c.stream.attach(std::move(with_head.file));
    CHECK((co_await c.ask(head_of("/takes", 1 << 20))).result_int() == 401);
    CHECK(co_await with_head.closed());
    c.stream.attach(std::move(with_body.file));
    co_await c.send("1");
    CHECK(co_await with_body.closed());
    auto d = co_await raw_client::connect(at);
    CHECK((co_await d.ask(post("/takes", "x", "Authorization: Bearer right\r\n"))).body() == "0");
  });
}

TEST_CASE("http descriptors: as many as any request has are kept, and who passes more is gone") {
  with_socket({}, [](asio::any_io_executor ex, endpoint at) -> awaitable<void> {
    for (const int count : {8, 9}) {
      auto c = co_await raw_client::connect(at);
      watched w(ex);
      for (int i = 0; i < count; ++i) c.stream.attach(w.file);
      w.file.reset();
      const auto answer = co_await c.ask(post("/takes", "x"));
      CHECK(answer.result_int() == (count == 8 ? 200 : 599));
      CHECK(co_await w.closed());
    }
  });
}

TEST_CASE("http descriptors: all clients together take a share of what the process may open") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit small = before;
  small.rlim_cur = 512;
  with_socket({}, [&](asio::any_io_executor ex, endpoint at) -> awaitable<void> {
    constexpr std::size_t share = 512 / 4;
    auto honest = co_await raw_client::connect(at);
    CHECK((co_await honest.ask(post("/plain", "x"))).result_int() == 200);
    std::vector<raw_client> greedy;
    for (std::size_t i = 0; i < 2 * share / 8; ++i) greedy.push_back(co_await raw_client::connect(at));
    co_await pause(1ms);
    ::setrlimit(RLIMIT_NOFILE, &small);
    lingering slow;  // holds up what is closed after it
    honest.stream.attach(std::move(slow.end));
    CHECK((co_await honest.ask(post("/plain", "x"))).result_int() == 200);
    watched w(ex);
    for (auto& c : greedy) {
      for (int i = 0; i < 8; ++i) c.stream.attach(w.file);
      co_await c.send("P");
    }
    w.file.reset();
    while (!cokv::detail::too_many_passed()) co_await pause(1ms);
    // What they say further is not read, and who comes waits, until some of theirs are closed.
    for (auto& c : greedy) co_await c.send("O");
    auto fresh = co_await raw_client::connect(at);
    co_await fresh.send(post("/plain", "x"));
    co_await honest.send(post("/plain", "x"));
    co_await pause(1ms);
    CHECK(cokv::detail::passed_descriptors() < share + 8);
    slow.release();
    CHECK((co_await fresh.read()).result_int() == 200);
    CHECK((co_await honest.read()).result_int() == 200);
    CHECK(cokv::detail::passed_descriptors() < share + 8);
    CHECK(co_await w.closed());
  });
  ::setrlimit(RLIMIT_NOFILE, &before);
}
