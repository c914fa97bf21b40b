// A client that is told of other memory while it asks for some.
#include "cokv/runtime/semaphore.hpp"
#include "shared_blocks.hpp"

using namespace cokv;
using namespace cokv::test;
using http::exchange;
using http::status;
using http::verb;

namespace {

// Answers in place of a cache, whose socket it never names: what `offer` says is told with every match.
struct go_between {
  go_between(asio::any_io_executor ex, endpoint cache) : server(ex) {
    server.route(verb::post, "/v1/kv/{namespace}:match", [this](exchange& x) -> awaitable<void> {
      if (!co_await x.read_all()) co_return;
      x.set("Cokv-Memory", offer);
      co_await x.respond(status::ok, "application/json", "{\"matched\":1}");
    });
    server.route(verb::post, "/v1/kv/{namespace}:read", [cache](exchange& x) -> awaitable<void> {
      const auto body = co_await x.read_all();
      if (!body) co_return;
      auto c = co_await raw_client::connect(cache);
      const auto answer = co_await c.ask(post("/v1/kv/" + cache_ns.hex() + ":read", *body));
      co_await x.respond(status::ok, "application/vnd.cokv.frames", answer.body());
    });
    server.listen({"127.0.0.1", 0});
  }

  http::server server;
  std::string offer;
};

// A socket on which nothing is answered before it may be.
struct slow_socket {
  explicit slow_socket(asio::any_io_executor ex) : goes_on(ex, 0), server(ex), path(fresh_path()) {
    const auto late = [this](exchange& x) -> awaitable<void> {
      if (!co_await x.read_all()) co_return;
      ++asked;
      (void)co_await goes_on.async_acquire(1, asio::deferred);
      co_await x.refuse({status::not_found, "it is not here any more", {}, "not_found"});
    };
    server.route(verb::get, "/v1/memory", late);
    server.listen(endpoint::local(path));
  }

  semaphore goes_on;
  http::server server;
  std::string path;
  int asked = 0;
};

}  // namespace

TEST_CASE("cache offers: what is under way where memory was lent before ends with its store") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender cache(ex);
        go_between front(ex, cache.at());
        slow_socket before(ex);
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn(front.server.run());
          group.spawn(before.server.run());
          auto s = std::make_unique<http_store>(ex, "http://" + front.server.local_endpoint().to_string());
          front.offer = "1 " + before.path;
          co_await meet(*s);
          error_code ec;
          group.spawn([&]() -> awaitable<void> {
            auto reader = co_await s->async_open_read(cache_ns, contract_layout(), contract_keys(0, 3), as_result);
            if (!reader) ec = reader.error();
          });
          co_await until(ex, [&] { return before.asked == 1; });
          front.offer = "4711 " + cache.path();
          co_await meet(*s);
          s.reset();
          co_await until(ex, [&] { return bool(ec); });
          front.server.drain(0s);
          before.server.drain(0s);
        });
        CHECK_MESSAGE(bool(v), v.error().message());
      },
      {.seeds = 20});
}

TEST_CASE("cache offers: a read that is under way where memory was lent is not lost when other memory is offered") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender cache(ex);
        go_between front(ex, cache.at());
        slow_socket before(ex);
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn(front.server.run());
          group.spawn(before.server.run());
          {
            http_store writer(ex, cache.url(), {.shared_memory = false});
            CHECK(!co_await write_blocks(writer, cache_ns, 0, 3));
          }
          http_store s(ex, "http://" + front.server.local_endpoint().to_string());
          front.offer = "1 " + before.path;
          co_await meet(s);
          std::size_t found = 0;
          bool over = false;
          group.spawn([&]() -> awaitable<void> {
            found = co_await read_blocks(s, cache_ns, 0, 3);
            over = true;
          });
          co_await until(ex, [&] { return before.asked == 1; });
          front.offer = "4711 " + cache.path();
          co_await meet(s);
          for (int i = 0; i < 20; ++i) co_await asio::post(ex, asio::deferred);
          CHECK(!over);
          before.goes_on.release();
          co_await until(ex, [&] { return over; });
          CHECK(found == 3);
          CHECK(s.info().lent_reads == 0);
          // What the one said that is gone is not held against the other.
          CHECK(co_await read_blocks(s, cache_ns, 0, 3) == 3);
          CHECK(s.info().lent_reads == 1);
          front.server.drain(0s);
          before.server.drain(0s);
        });
        CHECK_MESSAGE(bool(v), v.error().message());
      },
      {.seeds = 20});
}
