#include "cluster/kv_events.hpp"

#include <doctest/doctest.h>

#include "../http_fixture.hpp"
#include "cache/events.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace cokv::cluster;

namespace {

std::vector<block_key> keys_of(std::uint32_t blocks, token_id first = 0) {
  return chain_keys(std::vector<token_id>(std::size_t{4} * blocks, first), 4);
}

const auto ns = namespace_id::of("m", geometry::attention(1, 1, 4, dtype::f32));

cache::event_log::event event_of(std::uint64_t n, store_change::kind what, std::vector<block_key> keys) {
  return {n, {what, ns, std::move(keys)}, "device"};
}

// All events of a text, or "wrong".
std::vector<std::string> read(std::string_view text) {
  kv_event_reader reader;
  std::vector<std::string> out;
  while (!text.empty()) {
    const auto end = text.find('\n');
    const auto e = reader.line(text.substr(0, end));
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    if (!e) {
      out.push_back("wrong: " + e.error().parameter);
      break;
    }
    if (!*e) continue;
    const char* kinds[] = {"stored", "removed", "overflow"};
    out.push_back(std::string(kinds[static_cast<int>((*e)->kind)]) + ' ' + (*e)->id + ' ' + (*e)->tier + ' ' +
                  std::to_string((*e)->keys.size()));
  }
  return out;
}

using texts = std::vector<std::string>;

}  // namespace

TEST_CASE("kv_events: what a log tells is read as it was") {
  const auto stored = event_text(event_of(7, store_change::kind::stored, keys_of(3)), 0xab);
  const auto removed = event_text(event_of(8, store_change::kind::removed, keys_of(1)), 0xab);
  CHECK(read(": follows\n\n" + stored + ":\n\n" + removed + "id: ab-9\nevent: overflow\ndata: {}\n\n") ==
        texts{"stored ab-7 device 3", "removed ab-8 device 1", "overflow ab-9  0"});
  CHECK(read(stored.substr(0, stored.size() - 1)).empty());  // not complete
  CHECK(read("event: something-new\ndata: 7\n\n" + removed) == texts{"removed ab-8 device 1"});
}

TEST_CASE("kv_events: what is no event is refused, and nothing is kept beyond its bound") {
  CHECK(read("event: stored\ndata: {\n\n") == texts{"wrong: "});
  CHECK(read("event: stored\ndata: {}\n\n") == texts{"wrong: event.tier"});
  const std::string head = "event: stored\ndata: {\"tier\":\"device\",\"namespace\":\"00\",\"keys\":";
  CHECK(read(head + "[]}\n\n") == texts{"stored  device 0"});
  CHECK(read(head + "[7]}\n\n") == texts{"wrong: event.keys"});
  CHECK(read(head + "[\"abc\"]}\n\n") == texts{"wrong: event.keys"});
  std::string many = "[";
  for (std::size_t i = 0; i <= kv_event_reader::most_keys; ++i) many += (i ? ",\"" : "\"") + block_key{}.hex() + '"';
  CHECK(read(head + many + "]}\n\n") == texts{"wrong: event.keys"});
  const std::string long_line = "data: " + std::string(600 << 10, 'x') + '\n';
  CHECK(read(long_line + long_line) == texts{"wrong: event.data"});
}

TEST_CASE("kv_events: an index follows a log from where it was, and forgets what it may have missed") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto log = std::make_shared<cache::event_log>(5, 16);
    co_await with_site(
        {},
        [log](http::server& s) {
          s.route(http::verb::get, "/v1/events", [log](http::exchange& x) { return cache::follow(x, *log); });
        },
        [&](site& s) -> awaitable<void> {
          http::client worker(ex, http::parse_server_url("http://" + s.at.to_string()).value());
          prefix_index index;
          std::string last;
          const auto keys = keys_of(4), others = keys_of(30, 9);
          error_code ended;
          const auto follow = [&](int wanted) -> awaitable<void> {
            channel<char> enough(ex, 1);
            int seen = 0;
            (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
              group.spawn([&]() -> awaitable<void> {
                ended = co_await follow_kv(worker, last, [&](const kv_event& e) {
                  apply(e, 3, index);
                  if (++seen == wanted) enough.close();
                });
                enough.close();
              });
              while (log->followers() == 0) co_await pause(1ms);
              co_await pause(5ms);
              if (wanted == 2) {
                log->add("device", {store_change::kind::stored, ns, keys});
                log->add("device", {store_change::kind::removed, ns, {keys[3]}});
              }
              (void)co_await enough.async_receive(as_result);
              group.cancel();
            });
          };
          co_await follow(2);
          CHECK(index.leading(3, keys) == 3);
          CHECK(last == "5-2");
          while (log->followers() > 0) co_await pause(1ms);
          log->add("device", {store_change::kind::stored, ns, {keys[3]}});
          co_await follow(1);  // goes on behind what it had
          CHECK(index.leading(3, keys) == 4);
          while (log->followers() > 0) co_await pause(1ms);
          log->add("device", {store_change::kind::stored, ns, {others.begin(), others.begin() + 15}});
          log->add("device", {store_change::kind::stored, ns, {others.begin() + 15, others.end()}});
          co_await follow(1);  // too late for all of it
          CHECK(index.size(3) == 0);
          CHECK(last == "5-5");
        });
  });
}

TEST_CASE("kv_events: who has no such route is told apart from who is away") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    endpoint at;
    co_await with_site(
        {}, [](http::server&) {},
        [&](site& s) -> awaitable<void> {
          at = s.at;
          http::client worker(ex, http::parse_server_url("http://" + s.at.to_string()).value());
          std::string last;
          CHECK(co_await follow_kv(worker, last, [](const kv_event&) {}) == errc::unsupported);
        });
    http::client worker(ex, http::parse_server_url("http://" + at.to_string()).value());
    std::string last;
    const auto ended = co_await follow_kv(worker, last, [](const kv_event&) {});
    CHECK(ended != errc::unsupported);
    CHECK(static_cast<bool>(ended));
  });
}
