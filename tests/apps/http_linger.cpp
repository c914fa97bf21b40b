// The last answer of a connection arrives, whatever its client still sends: a close with bytes unread would be a reset.
#include "http_fixture.hpp"

using namespace cokv;
using namespace cokv::test;
using http::exchange;
using http::status;
using http::verb;

namespace {

void routes(http::server& s) {
  s.route(verb::get, "/stream", [](exchange& x) -> awaitable<void> {
    x.start(status::ok, "text/plain");
    co_await x.write("whole ");
    co_await x.write("answer");
    co_await x.finish();
  });
}

awaitable<time_point> now() { co_return clock::of(co_await asio::this_coro::executor).now(); }

const std::string old_request = "GET /stream HTTP/1.0\r\n\r\n";

}  // namespace

TEST_CASE("http linger: an answer that ends with its connection arrives, though bytes follow the request unread") {
  on_both_contexts([] {
    return with_site({}, routes, [](site& s) -> awaitable<void> {
      for (const auto& request :
           {old_request, get("/stream", "Connection: close\r\n"), std::string("no request\r\n\r\n")})
        for (const int together : {0, 2}) {
          CAPTURE(request);
          CAPTURE(together);
          auto c = co_await s.connect();
          co_await c.send(request + std::string(static_cast<std::size_t>(together), '\x01'));
          for (int i = 0; i < 20; ++i) {  // into a connection that was answered long ago
            co_await pause(1ms);
            CHECK_FALSE(co_await c.send(std::string(1, '\x02')));
          }
          const auto r = co_await c.read();
          CHECK(r.result_int() == (request[0] == 'G' ? 200 : 400));
          if (request[0] == 'G') CHECK(r.body() == "whole answer");
          if (r.has_content_length() || r.chunked()) CHECK(co_await c.ended());  // else its end was the body's
        }
    });
  });
}

TEST_CASE("http linger: it has a bound in time, and one in bytes") {
  http::server_options o;
  o.limit.linger_bytes = 1 << 20;
  on_sim_context(
      [o] {
        return with_site(o, routes, [](site& s) -> awaitable<void> {
          auto slow = co_await s.connect();
          CHECK((co_await slow.ask(old_request)).result_int() == 200);
          const auto begin = co_await now();
          while (!co_await slow.send("x")) co_await pause(50ms);
          CHECK(co_await now() - begin >= 1900ms);
          CHECK(co_await now() - begin < 2200ms);
          auto fast = co_await s.connect();
          CHECK((co_await fast.ask(old_request)).result_int() == 200);
          const std::string much(64 << 10, 'x');
          std::size_t sent = 0;
          while (!co_await fast.send(much) && sent < (16 << 20)) sent += much.size();
          CHECK(sent >= (1 << 20));
          CHECK(sent < (4 << 20));
          CHECK(s.server.connections() == 0);
        });
      },
      5);
}

TEST_CASE("http linger: it holds no place that others wait for, unless its client still sends") {
  http::server_options o;
  o.limit.connections = 1;
  on_sim_context(
      [o] {
        return with_site(o, routes, [](site& s) -> awaitable<void> {
          for (const bool sends : {false, true}) {
            CAPTURE(sends);
            auto first = co_await s.connect();
            CHECK((co_await first.ask(old_request)).result_int() == 200);
            const auto begin = co_await now();
            auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
              group.spawn([&]() -> awaitable<void> {
                while (sends && !co_await first.send("x")) co_await pause(50ms);
              });
              CHECK((co_await s.ask(get("/stream"))).result_int() == 200);
            });
            CHECK(bool(v));
            const auto took = co_await now() - begin;
            CHECK((sends ? took > 1900ms : took < 300ms));
            CHECK(took < 2500ms);
          }
        });
      },
      5);
}
