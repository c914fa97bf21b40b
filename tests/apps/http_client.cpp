// The client against our own server, and against listeners that answer as no server should.
#include "http/client.hpp"

#include "http_fixture.hpp"
#include "support/co_test.hpp"
#include "support/tls_certificates.hpp"

using namespace cokv;
using namespace cokv::test;
using http::exchange;
using http::status;
using http::verb;

namespace {

struct seen {
  std::size_t started = 0, ended = 0;
};

void routes(http::server& s, std::shared_ptr<seen> what = std::make_shared<seen>()) {
  s.route(verb::post, "/echo", [](exchange& x) -> awaitable<void> {
    auto body = co_await x.read_all();
    if (body) co_await x.respond(status::ok, "text/plain", *body);
  });
  s.route(verb::get, "/hello", [](exchange& x) -> awaitable<void> {
    const auto& f = x.request().fields;
    co_await x.respond(status::ok, "text/plain", "hello " + std::string(f["X-Who"]));
  });
  s.route(verb::delete_, "/gone",
          [](exchange& x) -> awaitable<void> { co_await x.respond(status::no_content, "", ""); });
  s.route(verb::get, "/chunks", [](exchange& x) -> awaitable<void> {
    x.start(status::ok, "text/plain");
    for (int i = 0; i < 100; ++i) co_await x.write(std::string(777, static_cast<char>('a' + i % 26)));
    co_await x.finish();
  });
  s.route(verb::get, "/lines", [](exchange& x) -> awaitable<void> {
    x.start(status::ok, "application/x-ndjson");
    std::string all;
    for (int i = 0; i < 200; ++i) all += std::string(static_cast<std::size_t>(i * 7 % 90), 'x') + '\n';
    for (std::size_t at = 0, n = 1; at < all.size(); at += n, n = n * 5 % 97 + 1) {
      co_await x.write(std::string_view(all).substr(at, n));
      if (n % 5 == 0) co_await pause(1ms);
    }
    co_await x.finish();
  });
  s.route(verb::get, "/slow", [what](exchange& x) -> awaitable<void> {
    ++what->started;
    const auto at_end = std::shared_ptr<void>(nullptr, [what](void*) { ++what->ended; });
    co_await pause(60s);
    co_await x.respond(status::ok, "text/plain", "late");
  });
  s.route(verb::get, "/at-it", [](exchange& x) -> awaitable<void> {
    co_await x.still_at_it();
    co_await pause(3ms);
    co_await x.still_at_it();
    co_await x.respond(status::ok, "text/plain", "done");
  });
  s.route(verb::get, "/stalls", [](exchange& x) -> awaitable<void> {
    x.start(status::ok, "text/plain");
    co_await x.write("a line\nhalf a li");
    co_await pause(60s);
    co_await x.finish();
  });
}

http::client_options quick() {
  http::client_options o;
  o.first_byte = o.silence = 200ms;
  return o;
}

template <class Body>
awaitable<void> with_client(http::client_options o, Body body, bool swept = false) {
  auto what = std::make_shared<seen>();
  co_await with_site(
      {}, [what](http::server& s) { routes(s, what); },
      [&](site& s) -> awaitable<void> {
        http::client c(co_await asio::this_coro::executor, {s.at}, std::move(o));
        co_await body(c, s, *what);
      },
      swept);
}

// A listener that sends `answers`, each to one request, and closes the connection after the last. `apart`: byte by byte.
template <class Body>
awaitable<void> with_answers(std::vector<std::string> answers, Body body, http::client_options o = {},
                             duration apart = 0s) {
  auto ex = co_await asio::this_coro::executor;
  auto door = network::of(ex).listen({"127.0.0.1", 0}).value();
  std::size_t requests = 0;
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> {
      for (;;) {
        byte_stream one = co_await door.async_accept();
        boost::beast::flat_buffer ahead;
        for (const auto& answer : answers) {
          bh::request<bh::string_body> r;
          auto [ec, n] = co_await bh::async_read(one, ahead, r, asio::as_tuple(asio::deferred));
          if (ec) break;
          ++requests;
          for (std::size_t i = 0; apart > 0s && i < answer.size(); ++i) {
            co_await asio::async_write(one, asio::buffer(&answer[i], 1), asio::as_tuple(asio::deferred));
            co_await pause(apart);
          }
          if (apart == 0s) co_await asio::async_write(one, asio::buffer(answer), asio::as_tuple(asio::deferred));
        }
        one.close();
      }
    });
    http::client c(ex, {door.local_endpoint()}, std::move(o));
    co_await body(c, requests);
    group.cancel();
  });
  CHECK_MESSAGE(bool(v), v.error().message());
}

const std::string fine = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

}  // namespace

TEST_CASE("http client: chunks that come byte by byte are what they would be at once") {
  on_both_contexts([] {
    const std::string head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    return with_answers(
        {head + "0\r\n\r\n", head + "0\r\nA: b\r\n\r\n", head + "1\r\nx\r\n0\r\n\r\n", fine},
        [](http::client& c, std::size_t&) -> awaitable<void> {
          for (const char* body : {"", "", "x", "ok"}) {
            auto r = co_await c.get("/");
            REQUIRE(r.has_value());
            CHECK(r->body == body);
          }
        },
        {}, 100us);
  });
}

TEST_CASE("http client: answers come whole, over one connection that is kept") {
  on_both_contexts([] {
    return with_client({}, [](http::client& c, site& s, seen&) -> awaitable<void> {
      for (std::size_t size : {0u, 1u, 5000u, 300'000u}) {
        std::string body(size, 'b');
        for (std::size_t i = 0; i < size; ++i) body[i] = static_cast<char>('a' + i * 7 % 26);
        auto r = co_await c.post("/echo", body);
        REQUIRE(r.has_value());
        CHECK(r->code == 200);
        CHECK(r->body == body);
      }
      http::client_request named{.target = "/hello"};
      named.fields.set("X-Who", "you");
      CHECK((co_await c.ask(named))->body == "hello you");
      auto chunks = co_await c.get("/chunks");
      REQUIRE(chunks.has_value());
      CHECK(chunks->body.size() == 77'700);
      CHECK(chunks->body.substr(777 * 27, 2) == "bb");
      CHECK((co_await c.del("/gone"))->code == 204);
      CHECK((co_await c.get("/nowhere"))->code == 404);
      CHECK((co_await c.get("/at-it"))->body == "done");
      CHECK(s.server.connections() == 1);
      CHECK(c.idle_connections() == 1);
      CHECK(c.lent_connections() == 0);
    });
  });
}

TEST_CASE("http client: an answer's lines come one by one, however it was cut") {
  on_both_contexts([] {
    return with_client({}, [](http::client& c, site&, seen&) -> awaitable<void> {
      auto lines = co_await c.open_lines({.target = "/lines"});
      REQUIRE(lines.has_value());
      CHECK(lines->code() == 200);
      for (int i = 0; i < 200; ++i) {
        auto line = co_await lines->next();
        REQUIRE(line.has_value());
        REQUIRE(line->has_value());
        CHECK((*line)->size() == static_cast<std::size_t>(i * 7 % 90));
      }
      for (int i = 0; i < 2; ++i) {
        auto over = co_await lines->next();
        REQUIRE(over.has_value());
        CHECK_FALSE(over->has_value());
      }
      CHECK(c.idle_connections() == 1);
      auto refused = co_await c.open_lines({.target = "/nowhere"});
      REQUIRE(refused.has_value());
      CHECK(refused->code() == 404);
      CHECK(refused->refusal().find("not_found") != std::string::npos);
      CHECK_FALSE((co_await refused->next())->has_value());
      CHECK(c.idle_connections() == 1);
    });
  });
}

TEST_CASE("http client: requests at the same time have connections of their own, up to a bound") {
  on_both_contexts([] {
    http::client_options o;
    o.max_connections = 3;
    o.max_idle = 2;
    return with_client(o, [](http::client& c, site&, seen&) -> awaitable<void> {
      std::size_t right = 0, full = 0;
      (void)co_await with(task_group{}, [&](task_group& group) {
        for (int i = 0; i < 5; ++i)
          group.spawn([&]() -> awaitable<void> {
            auto r = co_await c.get("/at-it");
            if (r)
              right += r->body == "done";
            else
              full += r.error() == errc::queue_full;
          });
      });
      CHECK(right == 3);
      CHECK(full == 2);
      CHECK(c.idle_connections() == 2);
    });
  });
}

TEST_CASE("http client: a server that says nothing costs the time that it was given") {
  on_sim_context([] {
    return with_client(quick(), [](http::client& c, site&, seen& what) -> awaitable<void> {
      auto& time = clock::of(co_await asio::this_coro::executor);
      auto start = time.now();
      CHECK((co_await c.get("/slow")).error() == errc::deadline);
      CHECK(time.now() - start >= 200ms);
      CHECK(time.now() - start < 300ms);
      co_await pause(1s);
      CHECK(what.started == 1);
      CHECK(what.ended == 1);  // its client has gone

      auto lines = co_await c.open_lines({.target = "/stalls"});
      REQUIRE(lines.has_value());
      CHECK(**(co_await lines->next()) == "a line");
      start = time.now();
      CHECK((co_await lines->next()).error() == errc::deadline);
      CHECK((co_await lines->next()).error() == errc::deadline);
      CHECK(time.now() - start < 300ms);
      CHECK((co_await c.get("/stalls")).error() == errc::deadline);
      CHECK(c.idle_connections() == 0);

      auto r = co_await c.ask({.target = "/slow", .first_byte = duration::max()});
      REQUIRE(r.has_value());
      CHECK(r->body == "late");
    });
  });
}

TEST_CASE("http client: what is cut or is no HTTP is an error, never a short answer") {
  struct wrong {
    std::string bytes;
    error_code why;
  };
  const std::vector<wrong> all{
      {"", errc::unavailable},
      {"HTTP/1.1 200 OK\r\nContent-Le", errc::unavailable},
      {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfive!", errc::unavailable},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfiv", errc::unavailable},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfive!\r\n", errc::unavailable},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfive!\r\n0\r\n", errc::unavailable},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\nfive!\r\n0\r\n\r\n", errc::protocol},
      {"HTTP/1.1 200 OK\r\n\r\nuntil the end", errc::protocol},
      {"hello\r\n\r\n", errc::protocol},
      {"HTTP/1.1 200 OK\r\nA: " + std::string(20'000, 'a') + "\r\n\r\n", errc::protocol},
      {"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", errc::protocol},
      {"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", errc::too_large},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7ff\r\n" + std::string(2047, 'a') + "\r\n0\r\n\r\n",
       errc::too_large},
  };
  on_both_contexts([&all]() -> awaitable<void> {
    for (const auto& one : all) {
      http::client_options o;
      o.reply_bytes = 1000;
      co_await with_answers(
          {one.bytes},
          [&](http::client& c, std::size_t&) -> awaitable<void> {
            CAPTURE(one.bytes);
            auto r = co_await c.post("/", "x");
            CHECK(!r.has_value());
            CHECK_MESSAGE(r.error() == one.why, r.error().message());
            CHECK(c.idle_connections() == 0);
            CHECK(c.lent_connections() == 0);
          },
          o);
    }
  });
}

TEST_CASE("http client: lines end with their end, are bounded, and stop where the answer is cut") {
  on_both_contexts([]() -> awaitable<void> {
    const std::string head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    http::client_options o;
    o.line_bytes = 100;
    const std::vector<std::pair<std::string, error_code>> all{
        {head + "8\r\none\ntwo\n\r\n", errc::unavailable},
        {head + "b\r\none\ntwo\ntri\r\n0\r\n\r\n", errc::protocol},
        {head + "8\r\none\ntwo\n\r\n1388\r\n" + std::string(5000, 'a') + "\r\n0\r\n\r\n", errc::too_large},
    };
    for (const auto& [bytes, why] : all)
      co_await with_answers(
          {bytes},
          [&](http::client& c, std::size_t&) -> awaitable<void> {
            auto lines = co_await c.open_lines({.target = "/"});
            REQUIRE(lines.has_value());
            std::string got;
            result<std::optional<std::string>> line = std::optional<std::string>();
            while ((line = co_await lines->next()) && *line) got += **line + ',';
            CHECK(got == "one,two,");
            CHECK_MESSAGE(line.error() == why, line.error().message());
            CHECK((co_await lines->next()).error() == why);
            CHECK(c.lent_connections() == 0);
          },
          o);
  });
}

TEST_CASE("http client: a kept connection that was closed meanwhile costs a repeatable request nothing") {
  on_both_contexts([]() -> awaitable<void> {
    // The second request on a connection is read, and answered with its end.
    co_await with_answers({fine, ""}, [](http::client& c, std::size_t& requests) -> awaitable<void> {
      CHECK((co_await c.get("/"))->body == "ok");
      CHECK((co_await c.get("/"))->body == "ok");  // sent twice
      CHECK(requests == 3);
      auto r = co_await c.post("/", "x");
      CHECK(r.error() == errc::unavailable);  // nobody knows what came of it
      CHECK(requests == 4);
      CHECK((co_await c.get("/"))->body == "ok");
      auto again = co_await c.ask({.method = verb::post, .target = "/", .body = "x", .repeatable = true});
      REQUIRE(again.has_value());
      CHECK(again->body == "ok");
      CHECK(requests == 7);
    });
    // One that ends while nobody uses it is not tried.
    co_await with_answers({fine}, [](http::client& c, std::size_t& requests) -> awaitable<void> {
      CHECK((co_await c.get("/"))->body == "ok");
      co_await pause(20ms);
      CHECK(c.idle_connections() == 0);
      CHECK((co_await c.post("/", "x"))->body == "ok");
      CHECK(requests == 2);
    });
    // What comes unasked is no answer to the next request.
    co_await with_answers({fine + fine, fine}, [](http::client& c, std::size_t&) -> awaitable<void> {
      CHECK((co_await c.get("/"))->body == "ok");
      co_await pause(20ms);
      CHECK(c.idle_connections() == 0);
    });
    http::client_options brief;
    brief.keep_alive = 10ms;
    co_await with_answers(
        {fine, fine},
        [](http::client& c, std::size_t&) -> awaitable<void> {
          CHECK((co_await c.get("/"))->body == "ok");
          CHECK(c.idle_connections() == 1);
          co_await pause(30ms);
          CHECK(c.idle_connections() == 0);
        },
        brief);
  });
}

TEST_CASE("http client: nobody there, a target that is none, a client that was closed") {
  on_both_contexts([]() -> awaitable<void> {
    auto ex = co_await asio::this_coro::executor;
    endpoint nobody;
    {
      auto door = network::of(ex).listen({"127.0.0.1", 0}).value();
      nobody = door.local_endpoint();
    }
    http::client c(ex, {nobody});
    CHECK((co_await c.get("/")).error() == asio::error::connection_refused);
    for (std::string target : {"", "x", "/a b", "/a\r\nX: y", "/\xc3\xa4"})
      CHECK((co_await c.get(target)).error() == errc::invalid_argument);
    co_await with_client({}, [](http::client& c, site&, seen&) -> awaitable<void> {
      error_code why;
      (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        group.spawn([&]() -> awaitable<void> { why = (co_await c.get("/slow")).error(); });
        co_await pause(10ms);
        c.close();
      });
      CHECK(why == errc::closed);
      CHECK((co_await c.get("/hello")).error() == errc::closed);
    });
  });
}

TEST_CASE("http client: its key goes along, and TLS is what the address says") {
  static authority ca;
  static const auto files = ca.issue({"IP:127.0.0.1"});
  on_both_contexts([]() -> awaitable<void> {
    http::server_options o;
    o.keys.add("sesame");
    o.tls = tls_context::server(files.certificate, files.key);
    co_await with_site(
        std::move(o), [](http::server& s) { routes(s); },
        [](site& s) -> awaitable<void> {
          auto ex = co_await asio::this_coro::executor;
          http::client_options trusting;
          trusting.tls = tls_context::client({.ca_file = ca.file()});
          http::client stranger(ex, {s.at, true}, trusting);
          CHECK((co_await stranger.get("/hello"))->code == 401);
          trusting.api_key = "sesame";
          http::client us(ex, {s.at, true}, trusting);
          for (int i = 0; i < 2; ++i) CHECK((co_await us.get("/hello"))->code == 200);
          CHECK((co_await us.get("/chunks"))->body.size() == 77'700);
          http::client plain(ex, {s.at}, quick());
          CHECK(!(co_await plain.get("/hello")).has_value());
        });
  });
}

TEST_CASE("http client: cancelled or destroyed at any step it leaves nothing behind") {
  auto body = [](asio::any_io_executor) -> awaitable<void> {
    co_await with_client(
        {},
        [](http::client& c, site&, seen&) -> awaitable<void> {
          auto whole = co_await c.post("/echo", "some bytes");
          if (whole) CHECK(whole->body == "some bytes");
          auto lines = co_await c.open_lines({.target = "/lines"});
          if (lines)
            for (int i = 0; i < 3; ++i) (void)co_await lines->next();
          auto again = co_await c.get("/hello");
          if (again) CHECK(again->body == "hello ");
        },
        true);
  };
  cancel_at_every_step(body, {.real = false});
  destroy_at_every_step(body, {.real = false});
}

TEST_CASE("http client: a URL names a server and nothing of it") {
  const auto at = [](std::string_view text) { return http::parse_server_url(text); };
  CHECK(at("http://127.0.0.1:8001").value() == http::server_url{{"127.0.0.1", 8001}, false});
  CHECK(at("http://worker-1/").value() == http::server_url{{"worker-1", 80}, false});
  CHECK(at("https://[::1]").value() == http::server_url{{"::1", 443}, true});
  CHECK(at("https://[::1]:8443").value().to_string() == "https://[::1]:8443");
  CHECK(at("http://worker").value().authority() == "worker");
  for (std::string_view text :
       {"", "worker:8001", "http://", "http://:80", "http://a:0", "http://a:70000", "http://a/b", "http://a?b",
        "http://a#b", "http://me@a", "http://a%0d%0ab", "http://a b", "http://[::1%25eth0]"})
    CHECK_MESSAGE(at(text).error() == errc::invalid_argument, text);
  CHECK(at("tcp://a:1").error() == errc::unsupported);
}
