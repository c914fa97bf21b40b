// Slow clients, in virtual time: each costs the server a connection for a known time, and no more.
#include "http_fixture.hpp"

using namespace cokv;
using namespace cokv::test;
using http::exchange;
using http::status;
using http::verb;

namespace {

http::server_options tight() {
  http::server_options o;
  o.limit.idle = 75s;
  o.limit.header = 10s;
  o.limit.stall = 30s;
  o.limit.least_rate = 1024;
  return o;
}

void routes(http::server& s) {
  s.route(verb::post, "/echo", [](exchange& x) -> awaitable<void> {
    auto body = co_await x.read_all();
    if (body) co_await x.respond(status::ok, "text/plain", *body);
  });
  s.route(verb::get, "/hello",
          [](exchange& x) -> awaitable<void> { co_await x.respond(status::ok, "text/plain", "hello"); });
}

awaitable<duration> took(duration since) {
  co_return clock::of(co_await asio::this_coro::executor).now().time_since_epoch() - since;
}

awaitable<duration> now() { co_return co_await took(duration(0)); }

// Sends a byte every `step` until the server has had enough.
awaitable<void> trickle(raw_client& c, duration step, char byte) {
  for (;;) {
    if (co_await c.send(std::string(1, byte))) co_return;
    co_await pause(step);
  }
}

template <class Body>
void in_virtual_time(Body body) {
  on_sim_context([body] { return with_site(tight(), routes, body); }, 5);
}

}  // namespace

TEST_CASE("http deadlines: a header that comes a byte at a time is cut off with 408") {
  in_virtual_time([](site& s) -> awaitable<void> {
    auto c = co_await s.connect();
    const auto start = co_await now();
    response r;
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn(trickle(c, 1s, 'G'));
      r = co_await c.read();
      group.cancel();
    });
    CHECK(r.result_int() == 408);
    const auto t = co_await took(start);
    CHECK(t >= 10s);
    CHECK(t < 11s);
  });
}

TEST_CASE("http deadlines: a connection without a request ends after the idle time, also between requests") {
  in_virtual_time([](site& s) -> awaitable<void> {
    auto c = co_await s.connect();
    auto start = co_await now();
    CHECK(co_await c.ended());
    CHECK(co_await took(start) < 76s);
    auto d = co_await s.connect();
    co_await pause(70s);
    CHECK((co_await d.ask(get("/hello"))).body() == "hello");
    co_await pause(70s);
    CHECK((co_await d.ask(get("/hello"))).body() == "hello");
    CHECK(co_await d.ended());
  });
}

TEST_CASE("http deadlines: a body that stops is answered with 408") {
  in_virtual_time([](site& s) -> awaitable<void> {
    for (std::string framing : {"Content-Length: 100\r\n\r\nxx", "Transfer-Encoding: chunked\r\n\r\n10\r\nxx"}) {
      auto c = co_await s.connect();
      const auto start = co_await now();
      CHECK((co_await c.ask("POST /echo HTTP/1.1\r\nHost: x\r\n" + framing)).result_int() == 408);
      CHECK(co_await took(start) < 31s);
    }
  });
}

TEST_CASE("http deadlines: a body that trickles for ever is cut off, a slow one that keeps up is not") {
  in_virtual_time([](site& s) -> awaitable<void> {
    auto c = co_await s.connect();
    const auto start = co_await now();
    co_await c.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n");
    response r;
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn(trickle(c, 1s, 'x'));
      r = co_await c.read();
      group.cancel();
    });
    CHECK(r.result_int() == 408);
    CHECK(co_await took(start) < 35s);

    auto d = co_await s.connect();
    co_await d.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 204800\r\n\r\n");
    for (int i = 0; i < 100; ++i) {
      co_await d.send(std::string(2048, 'x'));
      co_await pause(1s);
    }
    CHECK((co_await d.read()).body().size() == 204800);
  });
}

TEST_CASE("http deadlines: a client that does not read holds its handler back, and then ends it") {
  on_sim_context(
      [] {
        struct seen {
          std::size_t written = 0;
          error_code ended;
        };
        auto what = std::make_shared<seen>();
        return with_site(
            tight(),
            [what](http::server& s) {
              s.route(verb::get, "/much", [what](exchange& x) -> awaitable<void> {
                x.start(status::ok, "text/plain");
                const std::string piece(10'000, 'x');
                for (int i = 0; i < 10'000 && !what->ended; ++i) {
                  what->ended = co_await x.write(piece);
                  if (!what->ended) what->written += piece.size();
                }
              });
            },
            [what](site& s) -> awaitable<void> {
              auto c = co_await s.connect();
              co_await c.send(get("/much"));
              co_await pause(20s);
              const auto before = what->written;
              CHECK(before < 1'000'000);  // what sockets hold
              CHECK_FALSE(what->ended);
              co_await pause(60s);
              CHECK(what->written == before);
              CHECK(what->ended == errc::deadline);
            });
      },
      5);
}

TEST_CASE("http deadlines: clients that stall hold no places that others wait for") {
  on_sim_context(
      [] {
        auto o = tight();
        o.limit.connections = 8;
        return with_site(std::move(o), routes, [](site& s) -> awaitable<void> {
          std::vector<raw_client> stalled;
          for (int i = 0; i < 8; ++i) {
            stalled.push_back(co_await s.connect());
            co_await stalled.back().send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nxx");
          }
          co_await pause(20s);
          CHECK(s.server.requests_running() == 8);  // nobody waits
          const auto start = co_await now();
          CHECK((co_await s.ask(get("/hello"))).body() == "hello");
          CHECK(co_await took(start) < 5s);
          CHECK((co_await stalled[0].read()).result_int() == 408);
        });
      },
      5);
}
