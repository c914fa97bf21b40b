// The memory for transfers under way is given back by clients that don't use it, as soon as others wait for it.
#include <boost/json/parse.hpp>

#include "../http_fixture.hpp"
#include "fixture.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr std::uint64_t segment = 64 << 10;

stream_begin blocks_of(std::uint32_t first, std::uint32_t count) {
  return {.ns = cache_ns, .layout = {{segment, segment}}, .keys = contract_keys(first, count)};
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string stream_of(const stream_begin& about) {
  stream_writer out(about);
  std::string text = text_of(out.begin());
  for (std::uint32_t layer = 0; layer < about.layout.layers(); ++layer)
    for (std::uint32_t block = 0; block < about.keys.size(); ++block) {
      const std::string payload(about.layout.segments[layer], 'x');
      const auto head = out.segment(layer, block);
      text += text_of(head) + payload + text_of(seal(head, std::as_bytes(std::span(payload))));
    }
  return text + text_of(out.end());
}

const std::string base = "/v1/kv/" + cache_ns.hex();

std::string head_of(const std::string& body) {
  return "POST " + base + ":write HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n";
}

// Room for four blocks of a layer, as every client here wants.
const cache::service_options four{.room = 4 * segment + 4096};

awaitable<duration> now() { co_return clock::of(co_await asio::this_coro::executor).now().time_since_epoch(); }

void simulated(std::function<awaitable<void>(asio::any_io_executor)> body) {
  co_test(body, {.real = false, .seeds = 3});
}

std::uint64_t free_room(cache_server& server) {
  const auto page = server.service().metrics();
  const auto at = page.find("\ncokv_cache_room_bytes ");
  return std::stoull(page.substr(at + 23));
}

}  // namespace

TEST_CASE("cache room: an upload that stops gives its room up once others wait, and hears 408") {
  simulated([](asio::any_io_executor ex) -> awaitable<void> {
    cache_server server(ex, 1 << 26, four, {.stall = 60s});
    const auto held = stream_of(blocks_of(0, 4)), wanted = stream_of(blocks_of(10, 4));
    for (const std::size_t sent : {std::size_t(800), held.size() / 3, held.size() - 1}) {
      CAPTURE(sent);
      auto idle = co_await raw_client::connect(server.at());
      co_await idle.send(head_of(held) + held.substr(0, sent));
      co_await pause(40s);  // nobody waits: it may compute its next layer
      CHECK(free_room(server) < 4 * segment);
      auto c = co_await raw_client::connect(server.at());
      const auto start = co_await now();
      CHECK((co_await c.ask(head_of(wanted) + wanted)).result_int() == 200);
      CHECK(co_await now() - start < 6s);
      const auto told = co_await idle.read();
      CHECK(told.result_int() == 408);
      CHECK(boost::json::parse(told.body()).at("error").at("code") == "timeout");
    }
    CHECK(free_room(server) >= 4 * segment);
  });
}

TEST_CASE("cache room: an upload that drips gives its room up too, one that keeps up does not") {
  simulated([](asio::any_io_executor ex) -> awaitable<void> {
    cache_server server(ex, 1 << 26, four, {.stall = 60s});
    const auto held = stream_of(blocks_of(0, 4)), wanted = stream_of(blocks_of(10, 4));
    struct row {
      std::size_t step;  // bytes a second
      unsigned status;
    };
    for (const auto [step, status] : {row{1, 408}, row{2000, 408}, row{40'000, 200}}) {
      CAPTURE(step);
      auto slow = co_await raw_client::connect(server.at());
      auto c = co_await raw_client::connect(server.at());
      response told, other;
      auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        group.spawn([&]() -> awaitable<void> {
          co_await slow.send(head_of(held));
          for (std::size_t at = 0; at < held.size(); at += step) {
            if (co_await slow.send(held.substr(at, at == 0 ? 800 : step))) co_return;
            at += at == 0 ? 800 - step : 0;
            co_await pause(1s);
          }
        });
        group.spawn([&]() -> awaitable<void> {
          co_await pause(2s);
          const auto start = co_await now();
          other = co_await c.ask(head_of(wanted) + wanted);
          if (status == 408) CHECK(co_await now() - start < 10s);
        });
        told = co_await slow.read();
      });
      CHECK(bool(v));
      CHECK(told.result_int() == status);
      // Who keeps up may take longer than the other's patience.
      CHECK(other.result_int() == (status == 408 ? 200 : 503));
    }
  });
}

TEST_CASE("cache room: a reader that does not read gives its room up") {
  simulated([](asio::any_io_executor ex) -> awaitable<void> {
    cache_server server(ex, 1 << 26, {.room = 64 * segment + 4096}, {.stall = 60s});
    const auto stored = stream_of(blocks_of(0, 64)), wanted = stream_of(blocks_of(100, 64));
    auto c = co_await raw_client::connect(server.at());
    CHECK((co_await c.ask(head_of(stored) + stored)).result_int() == 200);
    auto lazy = co_await raw_client::connect(server.at());
    co_await lazy.send(post(base + ":read", text_of(stream_writer(blocks_of(0, 64)).begin())));
    co_await pause(5s);
    CHECK(free_room(server) < 64 * segment);  // what sockets hold is far less than a layer
    const auto start = co_await now();
    CHECK((co_await c.ask(head_of(wanted) + wanted)).result_int() == 200);
    CHECK(co_await now() - start < 10s);
  });
}

TEST_CASE("cache room: who waited in vain is told the truth, and when to come back") {
  simulated([](asio::any_io_executor ex) -> awaitable<void> {
    auto options = four;
    options.patience = 1s;  // less than it takes to find a client out
    cache_server server(ex, 1 << 26, options, {.stall = 60s});
    const auto held = stream_of(blocks_of(0, 4)), wanted = stream_of(blocks_of(10, 4));
    auto idle = co_await raw_client::connect(server.at());
    co_await idle.send(head_of(held) + held.substr(0, 800));
    co_await pause(100ms);
    auto c = co_await raw_client::connect(server.at());
    const auto r = co_await c.ask(head_of(wanted) + wanted);
    CHECK(r.result_int() == 503);
    CHECK(r[bh::field::retry_after] == "1");
    CHECK(r.body().find("other transfers have taken the memory") != std::string::npos);
    CHECK(boost::json::parse(r.body()).at("error").at("code") == "busy");
  });
}

TEST_CASE("cache room: /v1/info says what can be sent") {
  simulated([](asio::any_io_executor ex) -> awaitable<void> {
    cache_server server(ex, 1 << 26, {.room = 1 << 20, .max_body = 8 << 20});
    auto c = co_await raw_client::connect(server.at());
    const auto about = boost::json::parse((co_await c.ask(get("/v1/info"))).body());
    const auto most = about.at("max_segment_bytes").to_number<std::uint64_t>();
    CHECK(about.at("max_layer_bytes").to_number<std::uint64_t>() == most);
    auto one = blocks_of(0, 1);
    for (const std::uint64_t more : {0, 1}) {
      one.layout = {{most + more}};
      const auto body = stream_of(one);
      auto d = co_await raw_client::connect(server.at());
      const auto r = co_await d.ask(head_of(body) + body);
      CHECK(r.result_int() == (more ? 413 : 200));
      if (more) CHECK(r.body().find(std::to_string(most)) != std::string::npos);
    }
    cache_server small(ex, 1 << 26, {.room = 8 << 20, .max_body = 1 << 20});
    auto e = co_await raw_client::connect(small.at());
    const auto limits = boost::json::parse((co_await e.ask(get("/v1/info"))).body());
    one.layout = {{limits.at("max_segment_bytes").to_number<std::uint64_t>()}};
    CHECK(stream_of(one).size() == 1 << 20);
  });
}
