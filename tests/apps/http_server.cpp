#include "http/server.hpp"

#include "http_fixture.hpp"

using namespace cokv;
using namespace cokv::test;
using http::exchange;
using http::status;
using http::verb;

namespace {

void plain_routes(http::server& s) {
  s.route(verb::get, "/hello/{name}", [](exchange& x) -> awaitable<void> {
    co_await x.respond(status::ok, "text/plain", "hello " + std::string(x.request().parameter("name")));
  });
  s.route(verb::post, "/echo", [](exchange& x) -> awaitable<void> {
    auto body = co_await x.read_all();
    if (body) co_await x.respond(status::ok, "text/plain", *body);
  });
  s.route(verb::post, "/small",
          [](exchange& x) -> awaitable<void> {
            auto body = co_await x.read_all();
            if (body) co_await x.respond(status::ok, "text/plain", "fits");
          },
          {.body_bytes = 100});
  s.route(verb::get, "/stream", [](exchange& x) -> awaitable<void> {
    x.start(status::ok, "text/plain");
    for (int i = 0; i < 5; ++i)
      if (co_await x.write(std::to_string(i) + ",")) co_return;
    co_await x.finish();
  });
  s.route(verb::get, "/throws", [](exchange&) -> awaitable<void> {
    throw std::runtime_error("on purpose");
    co_return;
  });
  s.route(verb::get, "/gives-up", [](exchange&) -> awaitable<void> {
    throw boost::system::system_error(asio::error::operation_aborted, "something of its own");
    co_return;
  });
  s.route(verb::get, "/silent", [](exchange&) -> awaitable<void> { co_return; });
  s.route(verb::get, "/breaks-early", [](exchange& x) -> awaitable<void> {
    x.set(bh::field::cache_control, "max-age=3600");
    x.start(status::ok, "text/plain", 4);
    throw std::runtime_error("on purpose");
    co_return;
  });
  s.route(verb::get, "/breaks", [](exchange& x) -> awaitable<void> {
    x.start(status::ok, "text/plain");
    co_await x.write("half");
    throw std::runtime_error("on purpose");
  });
}

unsigned code_of(const response& r) { return r.result_int(); }

}  // namespace

TEST_CASE("http server: requests of one connection, one after the other") {
  on_both_contexts([] {
    return with_site({}, plain_routes, [](site& s) -> awaitable<void> {
      auto c = co_await s.connect();
      for (int i = 0; i < 3; ++i) {
        auto r = co_await c.ask(get("/hello/w" + std::to_string(i)));
        CHECK(code_of(r) == 200);
        CHECK(r.body() == "hello w" + std::to_string(i));
        CHECK(r.keep_alive());
        CHECK(r[bh::field::date].size() == 29);
        r = co_await c.ask(post("/echo", std::string(50'000, 'x')));
        CHECK(r.body() == std::string(50'000, 'x'));
      }
      auto r = co_await c.ask("HEAD /hello/x HTTP/1.1\r\nHost: x\r\n\r\n", true);
      CHECK(code_of(r) == 200);
      CHECK(r[bh::field::content_length] == "7");
      r = co_await c.ask(get("/hello/x", "Connection: close\r\n"));
      CHECK(code_of(r) == 200);
      CHECK_FALSE(r.keep_alive());
      CHECK(co_await c.ended());
    });
  });
}

TEST_CASE("http server: pipelined requests are answered in order") {
  on_both_contexts([] {
    return with_site({}, plain_routes, [](site& s) -> awaitable<void> {
      auto c = co_await s.connect();
      co_await c.send(get("/hello/a") + post("/echo", "body") + get("/stream") + get("/nope") + get("/hello/b"));
      CHECK((co_await c.read()).body() == "hello a");
      CHECK((co_await c.read()).body() == "body");
      CHECK((co_await c.read()).body() == "0,1,2,3,4,");
      CHECK(code_of(co_await c.read()) == 404);
      CHECK((co_await c.read()).body() == "hello b");
    });
  });
}

TEST_CASE("http server: the head goes out with the first write, even of nothing") {
  on_sim_context([] {
    const auto routes = [](http::server& s) {
      s.route(verb::get, "/early", [](exchange& x) -> awaitable<void> {
        x.start(status::ok, "text/plain");
        if (co_await x.write("")) co_return;
        co_await pause(1h);
        if (!co_await x.write("late")) co_await x.finish();
      });
    };
    return with_site({}, routes, [](site& s) -> awaitable<void> {
      auto& time = clock::of(co_await asio::this_coro::executor);
      auto c = co_await s.connect();
      const auto asked = time.now();
      co_await c.send(get("/early"));
      CHECK(code_of(co_await c.read(true)) == 200);
      CHECK(time.now() - asked < 1min);
      std::string body(static_cast<const char*>(c.ahead.data().data()), c.ahead.size());
      while (!body.ends_with("0\r\n\r\n")) {
        char bytes[64];
        auto [ec, n] = co_await c.stream.async_read_some(asio::buffer(bytes), asio::as_tuple(asio::deferred));
        REQUIRE(!ec);
        body.append(bytes, n);
      }
      CHECK(body == "4\r\nlate\r\n0\r\n\r\n");
    });
  });
}

TEST_CASE("http server: unknown routes, wrong methods and malformed requests are told apart") {
  on_both_contexts([] {
    return with_site({}, plain_routes, [](site& s) -> awaitable<void> {
      auto r = co_await s.ask(get("/nope"));
      CHECK(code_of(r) == 404);
      CHECK(r.body().find("\"code\":\"unknown_route\"") != std::string::npos);
      r = co_await s.ask(post("/hello/x", ""));
      CHECK(code_of(r) == 405);
      CHECK(r[bh::field::allow] == "GET, HEAD");
      struct {
        std::string request;
        unsigned code;
      } table[] = {
          {"nonsense\r\n\r\n", 400},
          {"GET /hello/x HTTP/1.1\r\n\r\n", 400},
          {"GET /hello/x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
          {"GET /a%2fb HTTP/1.1\r\nHost: x\r\n\r\n", 400},
          {"GET /hello/x HTTP/2.0\r\nHost: x\r\n\r\n", 505},
          {"GET /hello/x HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n", 400},
          {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
          {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -4\r\n\r\n", 400},
          {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
          {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
          {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
          {post("/echo", "x", "Content-Encoding: gzip\r\n"), 415},
          {get("/hello/" + std::string(20'000, 'x')), 431},
          {get("/hello/x", "A: " + std::string(20'000, 'x') + "\r\n"), 431},
      };
      for (auto& row : table) {
        CAPTURE(row.request);
        auto answer = co_await s.ask(row.request);
        CHECK(code_of(answer) == row.code);
      }
    });
  });
}

TEST_CASE("http server: a body over the route's limit is refused before it is sent, and when it was not announced") {
  on_both_contexts([] {
    return with_site({}, plain_routes, [](site& s) -> awaitable<void> {
      auto r = co_await s.ask("POST /small HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n");
      CHECK(code_of(r) == 413);
      CHECK(r.body().find("larger than 100 bytes") != std::string::npos);
      r = co_await s.ask("POST /small HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999\r\n\r\n");
      CHECK(code_of(r) == 413);
      CHECK(code_of(co_await s.ask(post("/small", std::string(100, 'x')))) == 200);
      r = co_await s.ask("POST /small HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n80\r\n" +
                         std::string(128, 'x') + "\r\n0\r\n\r\n");
      CHECK(code_of(r) == 413);
      // The default limit, with a client that sends it all before it reads: the answer still arrives.
      auto c = co_await s.connect();
      co_await c.send(post("/echo", std::string(4 << 20, 'x')));
      CHECK(code_of(co_await c.read()) == 413);
      CHECK(co_await c.ended());
    });
  });
}

TEST_CASE("http server: a refused request with a small body leaves the connection usable") {
  on_both_contexts([] {
    return with_site({}, plain_routes, [](site& s) -> awaitable<void> {
      auto c = co_await s.connect();
      CHECK(code_of(co_await c.ask(post("/nope", std::string(5'000, 'x')))) == 404);
      CHECK((co_await c.ask(get("/hello/x"))).body() == "hello x");
      CHECK(code_of(co_await c.ask(post("/hello/x", "abc"))) == 405);
      CHECK((co_await c.ask(get("/hello/y"))).body() == "hello y");
    });
  });
}

TEST_CASE("http server: chunked request bodies, sent in whatever pieces") {
  on_both_contexts([] {
    return with_site({}, plain_routes, [](site& s) -> awaitable<void> {
      auto c = co_await s.connect();
      const std::string request =
          "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
          "5;ext=1\r\nhello\r\n1\r\n \r\n6\r\nworld!\r\n0\r\nTrailer: 1\r\n\r\n";
      for (char b : request) co_await c.send(std::string(1, b));
      CHECK((co_await c.read()).body() == "hello world!");
      CHECK((co_await c.ask(get("/hello/x"))).body() == "hello x");
    });
  });
}

TEST_CASE("http server: a client that expects to be asked for its body is asked, unless it is refused") {
  on_both_contexts([] {
    return with_site({}, plain_routes, [](site& s) -> awaitable<void> {
      auto c = co_await s.connect();
      co_await c.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
      CHECK(code_of(co_await c.read()) == 100);
      CHECK((co_await c.ask("body")).body() == "body");
      auto r =
          co_await s.ask("POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: 999999\r\nExpect: 100-continue\r\n\r\n");
      CHECK(code_of(r) == 404);
    });
  });
}

TEST_CASE("http server: a response streams in chunks, and to HTTP/1.0 until the connection ends") {
  on_both_contexts([] {
    return with_site({}, plain_routes, [](site& s) -> awaitable<void> {
      auto c = co_await s.connect();
      auto r = co_await c.ask(get("/stream"));
      CHECK(r.chunked());
      CHECK(r.body() == "0,1,2,3,4,");
      CHECK((co_await c.ask(get("/hello/x"))).body() == "hello x");
      r = co_await c.ask("HEAD /stream HTTP/1.1\r\nHost: x\r\n\r\n", true);
      CHECK(code_of(r) == 200);
      CHECK((co_await c.ask(get("/hello/x"))).body() == "hello x");
      r = co_await s.ask("GET /stream HTTP/1.0\r\n\r\n");
      CHECK_FALSE(r.chunked());
      CHECK(r.body() == "0,1,2,3,4,");
    });
  });
}

TEST_CASE("http server: a handler that fails is a 500, or a cut stream, and the server goes on") {
  on_both_contexts([] {
    return with_site({}, plain_routes, [](site& s) -> awaitable<void> {
      CHECK(code_of(co_await s.ask(get("/throws"))) == 500);
      CHECK(code_of(co_await s.ask(get("/silent"))) == 500);
      CHECK(code_of(co_await s.ask(get("/gives-up"))) == 500);
      const auto early = co_await s.ask(get("/breaks-early"));
      CHECK(code_of(early) == 500);
      CHECK(early[bh::field::cache_control].empty());
      CHECK(early[bh::field::content_type] == "application/json");
      CHECK(code_of(co_await s.ask(get("/breaks"))) == 599);
      CHECK(code_of(co_await s.ask(get("/hello/x"))) == 200);
    });
  });
}

TEST_CASE("http server: with keys only open routes answer without one, and unknown ones don't show") {
  on_both_contexts([] {
    http::server_options o;
    o.keys.add("sesame");
    return with_site(
        std::move(o),
        [](http::server& s) {
          plain_routes(s);
          s.route(verb::get, "/healthz",
                  [](exchange& x) -> awaitable<void> { co_await x.respond(status::ok, "text/plain", "ok"); },
                  {.open = true});
        },
        [](site& s) -> awaitable<void> {
          for (auto request : {get("/hello/x"), get("/nope"), get("/hello/x", "Authorization: Bearer sesam\r\n")}) {
            auto r = co_await s.ask(request);
            CHECK(code_of(r) == 401);
            CHECK(r[bh::field::www_authenticate] == "Bearer realm=\"cokv\"");
            CHECK(r.body().find("invalid_api_key") != std::string::npos);
          }
          CHECK(code_of(co_await s.ask(get("/hello/x", "Authorization: Bearer sesame\r\n"))) == 200);
          CHECK(code_of(co_await s.ask(get("/healthz"))) == 200);
        });
  });
}

TEST_CASE("http server: when the client goes, its handler is cancelled") {
  on_both_contexts([] {
    struct seen {
      bool started = false, cancelled = false;
    };
    auto what = std::make_shared<seen>();
    return with_site(
        {},
        [what](http::server& s) {
          s.route(verb::post, "/wait", [what](exchange& x) -> awaitable<void> {
            (void)co_await x.read_all();
            what->started = true;
            try {
              co_await pause(24h);
            } catch (const boost::system::system_error& e) {
              what->cancelled = e.code() == asio::error::operation_aborted;
              throw;
            }
          });
        },
        [what](site& s) -> awaitable<void> {
          auto c = co_await s.connect();
          co_await c.send(post("/wait", "x"));
          while (!what->started) co_await pause(1ms);
          CHECK(s.server.requests_running() == 1);
          c.stream.close();
          while (s.server.connections() != 0) co_await pause(1ms);
          CHECK(what->cancelled);
          CHECK(s.server.requests_running() == 0);
        });
  });
}

TEST_CASE("http server: drain lets requests in flight finish, closes idle connections and takes no new ones") {
  on_both_contexts([] {
    auto running = std::make_shared<bool>(false);
    return with_site(
        {},
        [running](http::server& s) {
          plain_routes(s);
          s.route(verb::get, "/slow", [running](exchange& x) -> awaitable<void> {
            *running = true;
            co_await pause(20ms);
            co_await x.respond(status::ok, "text/plain", "done");
          });
        },
        [running](site& s) -> awaitable<void> {
          auto idle = co_await s.connect();
          CHECK(code_of(co_await idle.ask(get("/hello/x"))) == 200);
          auto busy = co_await s.connect();
          co_await busy.send(get("/slow"));
          while (!*running) co_await pause(1ms);
          s.server.drain(60s);
          auto r = co_await busy.read();
          CHECK(r.body() == "done");
          CHECK_FALSE(r.keep_alive());
          CHECK(co_await busy.ended());
          CHECK(co_await idle.ended());
          auto& net = network::of(co_await asio::this_coro::executor);
          auto [ec, stream] = co_await net.async_connect(s.at, asio::as_tuple(asio::deferred));
          CHECK(ec);
        });
  });
}

TEST_CASE("http server: what outlasts the drain's grace is cancelled") {
  on_both_contexts([] {
    auto running = std::make_shared<bool>(false);
    return with_site(
        {},
        [running](http::server& s) {
          s.route(verb::get, "/for-ever", [running](exchange&) -> awaitable<void> {
            *running = true;
            co_await pause(24h);
          });
        },
        [running](site& s) -> awaitable<void> {
          auto c = co_await s.connect();
          co_await c.send(get("/for-ever"));
          while (!*running) co_await pause(1ms);
          s.server.drain(10ms);
          CHECK(code_of(co_await c.read()) == 503);
        });
  });
}

TEST_CASE("http server: at its limit it closes the longest idle connection, and lets new ones wait for busy ones") {
  on_both_contexts([] {
    http::server_options o;
    o.limit.connections = 2;
    return with_site(std::move(o), plain_routes, [](site& s) -> awaitable<void> {
      auto a = co_await s.connect();
      CHECK(code_of(co_await a.ask(get("/hello/a"))) == 200);
      auto b = co_await s.connect();
      CHECK(code_of(co_await b.ask(get("/hello/b"))) == 200);
      auto c = co_await s.connect();
      CHECK(code_of(co_await c.ask(get("/hello/c"))) == 200);
      CHECK(co_await a.ended());
      CHECK(s.server.connections() <= 2);
    });
  });
}

TEST_CASE("http server: at its limit no request of many clients is lost, whatever they keep open") {
  on_sim_context(
      [] {
        http::server_options o;
        o.limit.connections = 12;
        return with_site(
            std::move(o),
            [](http::server& s) {
              plain_routes(s);
              s.route(verb::get, "/slow", [](exchange& x) -> awaitable<void> {
                co_await pause(7ms);
                co_await x.respond(status::ok, "text/plain", "done");
              });
            },
            [](site& s) -> awaitable<void> {
              auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
                for (int client = 0; client < 24; ++client)
                  group.spawn([&s, client]() -> awaitable<void> {
                    // Two connections each, kept as long as the server says; every request but the first comes at once
                    // or after a pause in which the connection may be closed for others.
                    std::optional<raw_client> kept[2];
                    for (int round = 0; round < 12; ++round) {
                      auto& c = kept[round % 2];
                      if (c && round % 5 == 4) {
                        c.reset();
                        co_await pause(std::chrono::milliseconds(client));
                      }
                      if (!c) c.emplace(co_await s.connect());
                      auto r = co_await c->ask(get(round % 3 ? "/slow" : "/hello/x"));
                      CHECK(code_of(r) == 200);
                      if (!r.keep_alive()) c.reset();
                      CHECK(s.server.connections() <= 12);
                    }
                  });
                co_return;
              });
              CHECK_MESSAGE(bool(v), v.error().message());
            });
      },
      40);
}

TEST_CASE("http server: a port in use is one line that names the flag and the address") {
  on_real_context([] {
    return with_site({}, plain_routes, [](site& s) -> awaitable<void> {
      http::server second(co_await asio::this_coro::executor);
      CHECK_THROWS_WITH_AS(second.listen(s.at),
                           doctest::Contains(("--listen 127.0.0.1:" + std::to_string(s.at.port)).c_str()),
                           config_error);
    });
  });
}

TEST_CASE("http server: what it observed of each request") {
  on_both_contexts([] {
    auto seen = std::make_shared<std::vector<std::string>>();
    http::server_options o;
    o.observe = [seen](const http::served& r) {
      seen->push_back(std::string(bh::to_string(r.method)) + ' ' + std::string(r.route) + ' ' +
                      std::to_string(static_cast<unsigned>(r.code)) + ' ' + std::to_string(r.bytes_in) + ' ' +
                      std::to_string(r.bytes_out));
    };
    return with_site(std::move(o), plain_routes, [seen](site& s) -> awaitable<void> {
      co_await s.ask(get("/hello/x"));
      co_await s.ask(post("/echo", "abc"));
      auto c = co_await s.connect();
      co_await c.ask(get("/nope"));
      co_await c.ask(get("/hello/y"));
      REQUIRE(seen->size() >= 3);
      CHECK((*seen)[0] == "GET /hello/{name} 200 0 7");
      CHECK((*seen)[1] == "POST /echo 200 3 3");
      CHECK((*seen)[2].starts_with("GET  404 0"));
    });
  });
}

TEST_CASE("http server: a server and then its context may be destroyed with requests in every state") {
  for (int steps = 0; steps < 60; ++steps) {
    auto context = std::make_unique<asio::io_context>(1);
    auto server = std::make_unique<http::server>(context->get_executor());
    plain_routes(*server);
    server->route(verb::get, "/for-ever", [](exchange&) -> awaitable<void> { co_await pause(24h); });
    server->listen({"127.0.0.1", 0});
    asio::co_spawn(*context, server->run(), asio::detached);
    auto client = [](endpoint at, std::string request) -> awaitable<void> {
      auto c = co_await raw_client::connect(at);
      co_await c.ask(request);
    };
    asio::co_spawn(*context, client(server->local_endpoint(), get("/for-ever")), asio::detached);
    asio::co_spawn(*context, client(server->local_endpoint(), post("/echo", "x")), asio::detached);
    for (int i = 0; i < steps; ++i) context->poll_one();
    server.reset();  // as every I/O object, before its context
    context.reset();
  }
}
