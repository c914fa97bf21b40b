#include "http/metrics.hpp"

#include "http_fixture.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("metrics: events that were counted and state that was read are one page") {
  auto page = std::make_shared<http::metrics>();
  page->counter("cokv_x_total", "x").Increment(3);
  page->counter("cokv_x_total", "x", {{"tier", "host"}}).Increment();
  page->histogram("cokv_ttft_seconds", "ttft", {0.1, 1}).Observe(0.5);
  page->add([](http::scrape& s) {
    s.gauge("cokv_blocks", "blocks", 7, {{"tier", "device"}});
    s.gauge("cokv_blocks", "blocks", 8, {{"tier", "host"}});
    s.counter("cokv_bytes_total", "bytes", 9);
  });
  const auto text = page->text();
  for (auto line : {"cokv_x_total 3", "cokv_x_total{tier=\"host\"} 1", "cokv_ttft_seconds_bucket{le=\"0.1\"} 0",
                    "cokv_ttft_seconds_bucket{le=\"1\"} 1", "cokv_ttft_seconds_count 1", "# TYPE cokv_blocks gauge",
                    "cokv_blocks{tier=\"device\"} 7", "cokv_blocks{tier=\"host\"} 8", "# TYPE cokv_bytes_total counter",
                    "cokv_bytes_total 9"}) {
    CAPTURE(line);
    CHECK(text.find(line) != std::string::npos);
  }
}

TEST_CASE("metrics: a server's requests by route and status, without a client's own words") {
  on_both_contexts([] {
    auto page = std::make_shared<http::metrics>();
    http::server_options o;
    o.observe = page->observer();
    return with_site(
        std::move(o),
        [page](http::server& s) {
          page->route(s);
          http::route_health(s);
        },
        [page](site& s) -> awaitable<void> {
          CHECK((co_await s.ask(get("/healthz"))).body() == "ok\n");
          CHECK((co_await s.ask(get("/secret-path"))).result_int() == 404);
          auto r = co_await s.ask(get("/metrics"));
          CHECK(r.result_int() == 200);
          CHECK(r[bh::field::content_type] == "text/plain; version=0.0.4; charset=utf-8");
          CHECK(r.body().find("route=\"/healthz\"") != std::string::npos);
          CHECK(r.body().find("status=\"404\"") != std::string::npos);
          CHECK(r.body().find("secret-path") == std::string::npos);
        });
  });
}

TEST_CASE("health: 503 and why, as long as there is a reason") {
  on_both_contexts([] {
    auto why = std::make_shared<std::string>();
    return with_site(
        {}, [why](http::server& s) { http::route_health(s, [why] { return *why; }); },
        [why](site& s) -> awaitable<void> {
          CHECK((co_await s.ask(get("/healthz"))).result_int() == 200);
          *why = "the engine can't go on";
          const auto r = co_await s.ask(get("/healthz"));
          CHECK(r.result_int() == 503);
          CHECK(r.body() == "the engine can't go on\n");
        });
  });
}
