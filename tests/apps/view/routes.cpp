#include "view/routes.hpp"

#include <boost/json/parse.hpp>

#include "../http_fixture.hpp"
#include "view/web_files.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace cokv::view;
namespace json = boost::json;

namespace {

struct shown {
  explicit shown(asio::any_io_executor ex) : events(std::move(ex)) {}
  journal events;
  int asked = 0;
};

http::server_options with_keys() {
  http::server_options o;
  o.keys.add("may-everything");
  o.keys.add("may-read", {.rights = static_cast<std::uint8_t>(http::right::read)});
  return o;
}

template <class Body>
awaitable<void> with_view(Body body, http::server_options o = {}) {
  const auto s = std::make_shared<shown>(co_await asio::this_coro::executor);
  co_await with_site(
      std::move(o),
      [s](http::server& server) {
        route_view(server, [s] { return json::object{{"role", "router"}, {"asked", ++s->asked}}; }, s->events, "m");
      },
      [&](site& at) { return body(at, *s); });
}

// A client of the stream: each object that comes.
struct watcher {
  raw_client peer;
  std::string text = {};

  static awaitable<watcher> begin(endpoint at) {
    watcher w{co_await raw_client::connect(at)};
    co_await w.peer.send("GET /v1/status/stream HTTP/1.0\r\n\r\n");
    co_return w;
  }
  awaitable<json::object> next() {
    for (;;) {
      const auto begin = text.find("data: "), end = text.find("\n\n", begin);
      if (begin != text.npos && end != text.npos) {
        const auto v = json::parse(text.substr(begin + 6, end - begin - 6));
        text.erase(0, end + 2);
        co_return v.as_object();
      }
      char more[4096];
      auto [ec, n] = co_await peer.stream.async_read_some(asio::buffer(more), asio::as_tuple(asio::deferred));
      REQUIRE_MESSAGE(!ec, ec.message());
      text.append(more, n);
    }
  }
};

}  // namespace

TEST_CASE("view: the page and its files are served as what they are, under a policy that lets nothing else in") {
  on_both_contexts([] {
    return with_view([](site& at, shown&) -> awaitable<void> {
      const std::pair<const char*, const char*> files[] = {{"/", "text/html"},
                                                           {"/page.css", "text/css"},
                                                           {"/page.js", "text/javascript"},
                                                           {"/view.js", "text/javascript"}};
      for (const auto& [path, type] : files) {
        CAPTURE(path);
        auto r = co_await at.ask(get(path));
        CHECK(r.result_int() == 200);
        CHECK(r[bh::field::content_type] == std::string(type) + "; charset=utf-8");
        const std::string policy(r["Content-Security-Policy"]);
        CHECK(policy.starts_with("default-src 'none'; "));
        CHECK(policy.find("unsafe") == policy.npos);
        CHECK(policy.find("frame-ancestors 'none'") != policy.npos);
        CHECK(r["X-Content-Type-Options"] == "nosniff");
        CHECK(r.body().size() > 500);
      }
      CHECK((co_await at.ask(get("/index.html"))).result_int() == 404);
    });
  });
}

TEST_CASE("view: the files keep to what the policy allows, and take nothing from the network as HTML") {
  const std::string page(web_file("index.html"));
  for (auto word : {"http:", "https:", "//", "style=", "onclick", "<script>", "<style"}) {
    CAPTURE(word);
    CHECK(page.find(word) == page.npos);
  }
  for (auto name : {"page.js", "view.js"}) {
    const std::string script(web_file(name));
    REQUIRE(script.size() > 1000);
    for (auto word : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "localStorage"}) {
      CAPTURE(word);
      CHECK(script.find(word) == script.npos);
    }
  }
  CHECK(web_file("nothing").empty());
}

TEST_CASE("view: the page needs no key, what it shows needs one with the right admin") {
  on_both_contexts([] {
    return with_view(
        [](site& at, shown&) -> awaitable<void> {
          CHECK((co_await at.ask(get("/"))).result_int() == 200);
          for (const char* path : {"/v1/status", "/v1/status/stream"}) {
            CAPTURE(path);
            CHECK((co_await at.ask(get(path))).result_int() == 401);
            CHECK((co_await at.ask(get(path, "Authorization: Bearer may-read\r\n"))).result_int() == 403);
          }
          auto r = co_await at.ask(get("/v1/status", "Authorization: Bearer may-everything\r\n"));
          CHECK(r.result_int() == 200);
          CHECK(json::parse(r.body()).at("model").as_string() == "m");
        },
        with_keys());
  });
}

TEST_CASE("view: the stream tells at once, every second, and at what happens, which counts once for a burst") {
  on_sim_context([]() -> awaitable<void> {
    co_await with_view([](site& at, shown& s) -> awaitable<void> {
      auto& time = clock::of(co_await asio::this_coro::executor);
      auto w = co_await watcher::begin(at.at);
      const auto start = time.now();
      CHECK((co_await w.next()).at("asked").as_int64() == 1);
      CHECK(time.now() - start < 100ms);
      CHECK(s.events.followers() == 1);
      (void)co_await w.next();
      CHECK(time.now() - start >= 1s);
      CHECK(time.now() - start < 1200ms);
      co_await pause(300ms);
      const auto before = time.now();
      for (int i = 0; i < 20; ++i) s.events.add({.what = "died", .who = "w"});
      CHECK((co_await w.next()).at("asked").as_int64() == 3);
      CHECK(time.now() - before < 100ms);
      (void)co_await w.next();
      CHECK(time.now() - before >= 1s);
    });
  });
}

TEST_CASE("view: so many may watch, and who leaves makes room") {
  on_sim_context([]() -> awaitable<void> {
    co_await with_view([](site& at, shown& s) -> awaitable<void> {
      std::vector<watcher> all;
      for (std::size_t i = 0; i < most_watchers; ++i) {
        all.push_back(co_await watcher::begin(at.at));
        (void)co_await all.back().next();
      }
      CHECK((co_await at.ask(get("/v1/status/stream"))).result_int() == 503);
      CHECK((co_await at.ask(get("/v1/status"))).result_int() == 200);
      all.pop_back();
      while (s.events.followers() == most_watchers) co_await pause(10ms);
      (void)co_await (co_await watcher::begin(at.at)).next();
    });
  });
}

TEST_CASE("view: a stream ends when its server does, within a second") {
  on_sim_context([]() -> awaitable<void> {
    co_await with_view([](site& at, shown&) -> awaitable<void> {
      auto w = co_await watcher::begin(at.at);
      (void)co_await w.next();
      auto& time = clock::of(co_await asio::this_coro::executor);
      const auto start = time.now();
      at.server.drain(30s);
      CHECK(co_await w.peer.ended());
      CHECK(time.now() - start <= 1100ms);
    });
  });
}
