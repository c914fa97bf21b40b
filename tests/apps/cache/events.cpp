#include "../http_fixture.hpp"
#include "cache/event_log.hpp"
#include "cokv/runtime/result.hpp"
#include "fixture.hpp"

using namespace cokv;
using namespace cokv::test;
using cache::event_log;
using kind = store_change::kind;

namespace {

const auto whole = contract_layout().bytes();
const auto other_ns = namespace_id::of("o", geometry::attention(3, 2, 4, dtype::f32));

store_change change(std::uint32_t first, std::uint32_t count, kind what = kind::stored) {
  return {what, cache_ns, contract_keys(first, count)};
}

// A cache whose events can be followed.
struct told_server {
  explicit told_server(asio::any_io_executor ex, std::uint64_t blocks = 100, http::api_keys keys = {},
                       std::size_t ring = 1 << 16)
      : parts_(std::make_shared<parts>(ex, blocks, std::move(keys), ring)) {
    parts_->service.add_routes(parts_->server);
    parts_->server.listen({"127.0.0.1", 0});
    at = parts_->server.local_endpoint();
    asio::co_spawn(ex, run(parts_), asio::detached);
  }
  ~told_server() { parts_->server.drain(duration(0)); }

  struct parts {
    parts(asio::any_io_executor ex, std::uint64_t blocks, http::api_keys keys, std::size_t ring)
        : log(std::make_shared<event_log>(0xabc, ring)),
          memory(ex, {.limit_bytes = blocks * whole, .on_change = log->of("memory")}),
          service(memory, {{"memory", &memory}}, {.events = log}),
          server(ex, {.keys = std::move(keys)}) {}
    std::shared_ptr<event_log> log;
    memory_store memory;
    cache::service service;
    http::server server;
  };
  static awaitable<void> run(std::shared_ptr<parts> p) { co_await p->server.run(); }

  memory_store& store() { return parts_->memory; }
  std::shared_ptr<parts> parts_;
  endpoint at;
};

// Reads a stream of events: bytes of the chunks, cut at empty lines.
struct follower {
  static awaitable<follower> start(endpoint at, std::string fields = "", std::string query = "") {
    auto c = co_await raw_client::connect(at);
    co_await c.send(get("/v1/events" + query, fields));
    follower out{std::move(c)};
    const auto head = co_await out.until("\r\n\r\n");
    CHECK(head.starts_with("HTTP/1.1 200"));
    CHECK(head.find("text/event-stream") != std::string::npos);
    CHECK(co_await out.next() == ": follows\n\n");
    co_return out;
  }
  awaitable<std::string> until(std::string_view mark) {
    for (;;) {
      if (const auto at = text.find(mark); at != text.npos) {
        auto out = text.substr(0, at + mark.size());
        text.erase(0, out.size());
        co_return out;
      }
      char bytes[1000];
      auto [ec, n] = co_await client.stream.async_read_some(asio::buffer(bytes), asio::as_tuple(asio::deferred));
      if (ec) co_return std::exchange(text, {});
      text.append(bytes, n);
    }
  }
  // One event, without the chunk around it; each is a chunk of its own. Empty: the stream is over.
  awaitable<std::string> next() {
    const auto size = co_await until("\r\n");
    if (size.empty() || size == "0\r\n") co_return "";
    const auto body = co_await until("\n\n");
    co_await until("\r\n");
    co_return body;
  }
  raw_client client;
  std::string text = {};
};

std::string text_of(std::uint64_t sequence, kind what, std::vector<block_key> keys, const namespace_id& ns = cache_ns) {
  return cache::event_text({sequence, {what, ns, std::move(keys)}, "memory"}, 0xabc);
}

}  // namespace

TEST_CASE("event log: numbers without a gap, large ones in parts, and the oldest go") {
  event_log log(1, 1200);
  CHECK(log.newest() == 0);
  CHECK(!log.next(1).lost);
  CHECK(!log.next(1).next);
  log.add("memory", change(0, 1100));
  CHECK(log.newest() == 3);
  CHECK(log.next(1).next->what.keys.size() == 512);
  CHECK(log.next(3).next->what.keys.size() == 76);
  log.add("disk", change(5000, 200, kind::removed));
  CHECK(log.newest() == 4);
  CHECK(log.next(1).lost);
  CHECK(log.next(2).next);
  CHECK(log.next(4).next->tier == "disk");
  CHECK(!log.next(5).lost);
  CHECK(log.next(6).lost);  // of a future that never was
}

TEST_CASE("event log: an id is read back, and one of another life or of none is not") {
  for (const std::uint64_t epoch : {std::uint64_t{0}, std::uint64_t{0xabc}, ~std::uint64_t{0}})
    for (const std::uint64_t n : {std::uint64_t{0}, std::uint64_t{17}, ~std::uint64_t{0} - 1})
      CHECK(cache::parse_event_id(cache::event_id(epoch, n), epoch) == n + 1);
  for (const char* text :
       {"", "-", "abc-", "-1", "abd-1", "abc-1x", "abc--1", "abc-99999999999999999999", "abc-18446744073709551615"}) {
    CAPTURE(text);
    CHECK(!cache::parse_event_id(text, 0xabc));
  }
}

TEST_CASE("cache events: what becomes visible and what goes is told, in order") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        told_server server(ex, 3);
        CHECK(!co_await write_blocks(server.store(), cache_ns, 90, 1));  // before anybody follows
        auto f = co_await follower::start(server.at);
        CHECK(!co_await write_blocks(server.store(), cache_ns, 0, 2));
        CHECK(co_await f.next() == text_of(2, kind::stored, contract_keys(0, 2)));
        CHECK(!co_await write_blocks(server.store(), cache_ns, 0, 2));  // there already
        CHECK(!co_await write_blocks(server.store(), cache_ns, 5, 1));  // pushes the oldest out
        CHECK(co_await f.next() == text_of(3, kind::removed, contract_keys(90, 1)));
        CHECK(co_await f.next() == text_of(4, kind::stored, contract_keys(5, 1)));
        co_await server.store().async_remove(cache_ns, contract_keys(5, 1)[0]);
        CHECK(co_await f.next() == text_of(5, kind::removed, contract_keys(5, 1)));
        CHECK(!co_await write_blocks(server.store(), cache_ns, 1, 1, {.force = true}));
        CHECK(co_await f.next() == text_of(6, kind::removed, contract_keys(1, 1)));
        CHECK(co_await f.next() == text_of(7, kind::stored, contract_keys(1, 1)));

        auto again = co_await follower::start(server.at, "Last-Event-ID: abc-5\r\n");
        CHECK(co_await again.next() == text_of(6, kind::removed, contract_keys(1, 1)));
        CHECK(co_await again.next() == text_of(7, kind::stored, contract_keys(1, 1)));
        for (const char* strange : {"abd-5", "abc-4711", "nonsense"}) {
          auto lost = co_await follower::start(server.at, "Last-Event-ID: " + std::string(strange) + "\r\n");
          CHECK(co_await lost.next() == "id: abc-7\nevent: overflow\ndata: {}\n\n");
        }
      },
      {.seeds = 5});
}

TEST_CASE("cache events: who is too slow is told that it missed some, and goes on from there") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        told_server server(ex, 1000, {}, 8);
        auto f = co_await follower::start(server.at);
        for (std::uint32_t i = 0; i < 2000; ++i) server.parts_->log->add("memory", change(i % 50, 1));
        std::string last, text;
        do {
          last = co_await f.next();
          text += last;
        } while (last.find("abc-2000") == last.npos);
        CHECK(text.find("event: overflow") != text.npos);
        server.parts_->log->add("memory", change(7, 1));
        CHECK(co_await f.next() == text_of(2001, kind::stored, contract_keys(7, 1)));
      },
      {.seeds = 5});
}

TEST_CASE("cache events: one namespace, rights, and the end of the server") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        using http::right;
        http::api_keys keys;
        keys.add("reads", {.rights = static_cast<std::uint8_t>(right::read)});
        keys.add("writes", {.rights = static_cast<std::uint8_t>(right::write)});
        keys.add("narrow", {.namespaces = {other_ns}});
        told_server server(ex, 100, std::move(keys));
        const auto as = [](std::string_view key) { return "Authorization: Bearer " + std::string(key) + "\r\n"; };
        auto c = co_await raw_client::connect(server.at);
        CHECK((co_await c.ask(get("/v1/events"))).result_int() == 401);
        CHECK((co_await c.ask(get("/v1/events", as("writes")))).result_int() == 403);
        CHECK((co_await c.ask(get("/v1/events?namespace=zz", as("reads")))).result_int() == 400);
        auto all = co_await follower::start(server.at, as("reads"));
        auto asked = co_await follower::start(server.at, as("reads"), "?namespace=" + cache_ns.hex());
        auto narrow = co_await follower::start(server.at, as("narrow"));
        CHECK(!co_await write_blocks(server.store(), other_ns, 0, 1));
        CHECK(!co_await write_blocks(server.store(), cache_ns, 0, 1));
        CHECK(!co_await write_blocks(server.store(), other_ns, 1, 1));
        CHECK(co_await all.next() == text_of(1, kind::stored, contract_keys(0, 1), other_ns));
        CHECK(co_await all.next() == text_of(2, kind::stored, contract_keys(0, 1)));
        CHECK(co_await asked.next() == text_of(2, kind::stored, contract_keys(0, 1)));
        CHECK(co_await narrow.next() == text_of(1, kind::stored, contract_keys(0, 1), other_ns));
        CHECK(co_await narrow.next() == text_of(3, kind::stored, contract_keys(1, 1), other_ns));
        const auto begin = clock::of(ex).now();
        server.parts_->server.drain(30s);  // nobody waits for those who would never end
        CHECK(co_await asked.next() == "");
        CHECK(clock::of(ex).now() - begin < 5s);
      },
      {.seeds = 5});
}

TEST_CASE("cache events: a quiet stream has a heartbeat, and who has gone is forgotten") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        told_server server(ex);
        {
          auto f = co_await follower::start(server.at);
          const auto begin = clock::of(ex).now();
          CHECK(co_await f.next() == ":\n\n");
          CHECK(clock::of(ex).now() - begin < 20s);
          CHECK(server.parts_->log->followers() == 1);
        }
        co_await clock::of(ex).async_wait_for(1s, asio::deferred);
        CHECK(server.parts_->log->followers() == 0);
      },
      {.real = false, .seeds = 5});
}
