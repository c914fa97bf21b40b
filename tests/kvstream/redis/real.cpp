// Real nodes of Redis: what the store promises, on one and on a cluster of three, of which one is killed, and of whose
// slots one is handed over under readers.
#include <doctest/doctest.h>

#include "cokv/kvstream/redis_store.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "kvstream/redis/real_redis.hpp"
#include "store/redis/head.hpp"
#include "store/redis/slots.hpp"
#include "support/store_contract.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

constexpr auto tuple = asio::as_tuple(asio::deferred);
const namespace_id ns = namespace_id::of("m", geometry::attention(3, 2, 4, dtype::f32));

std::uint16_t slot_of_key(std::uint32_t key) {
  return detail::slot_of(detail::head_name(ns, contract_keys(key, 1)[0]));
}

// A store of its own each time, on nodes that stay: what was there goes first.
struct shared_nodes {
  redis_processes all;
  bool joined = false;
  awaitable<void> ready() {
    if (!std::exchange(joined, true)) co_await all.join();
    for (auto& n : all.nodes) co_await n->ask({"FLUSHALL"});
  }
};

}  // namespace

TEST_CASE("redis, one real node: the contract") {
  if (!have_redis()) return;
  static redis_process one(false);
  store_contract(
      [](asio::any_io_executor ex, std::uint64_t) -> awaitable<stored> {
        co_await one.ask({"FLUSHALL"});
        co_return stored{std::make_unique<redis_store>(ex, "redis://" + one.at().to_string(),
                                                       redis_store_options{.piece_bytes = 3000, .lookup = 30s}),
                         nullptr};
      },
      {.run = {.seeds = 0}, .has_limit = false, .every_step = false});
}

TEST_CASE("redis, a real cluster of three: the contract") {
  if (!have_redis()) return;
  static shared_nodes three;
  store_contract(
      [](asio::any_io_executor ex, std::uint64_t) -> awaitable<stored> {
        co_await three.ready();
        co_return stored{std::make_unique<redis_store>(ex, three.all.url(), redis_store_options{.lookup = 30s}),
                         nullptr};
      },
      {.run = {.seeds = 0}, .has_limit = false, .every_step = false});
}

TEST_CASE("redis, a real cluster of three: one is killed; its share fails fast and the rest works") {
  if (!have_redis()) return;
  redis_processes all;
  run_real([&](asio::any_io_executor ex) -> awaitable<void> {
    co_await all.join();
    redis_store s(ex, all.url(), {.lookup = 30s});
    constexpr std::uint32_t blocks = 30;
    CHECK(!co_await write_blocks(s, ns, 0, blocks));
    CHECK(co_await read_blocks(s, ns, 0, blocks) == blocks);
    all.nodes[1]->kill();
    std::uint32_t there = 0, gone = 0;
    for (std::uint32_t k = 0; k < blocks; ++k) {
      const bool dead = all.owner_of(slot_of_key(k)) == 1;
      auto n = co_await s.async_match(ns, contract_keys(k, 1), as_result);
      CHECK((n && *n == 1) == !dead);
      CHECK(co_await read_blocks(s, ns, k, 1) == (dead ? 0 : 1));
      ++(dead ? gone : there);
    }
    CHECK((there > 3 && gone > 3));
    auto [ec, writer] = co_await s.async_open_write(ns, contract_layout(), contract_keys(100, 20), {}, tuple);
    CHECK(!ec);
    if (ec) co_return;
    for (std::uint32_t layer = 0; layer < 4; ++layer)
      CHECK(co_await writer->async_write(layer, contract_segments(100, 20, layer), as_result));
    auto [cec] = co_await writer->async_commit(tuple);
    CHECK(cec == errc::partial);
    for (std::uint32_t k = 0; k < 20; ++k) {
      CHECK(writer->keeps(k) == (all.owner_of(slot_of_key(100 + k)) != 1));
      CHECK(co_await read_blocks(s, ns, 100 + k, 1) == (writer->keeps(k) ? 1 : 0));
    }
  });
}

TEST_CASE("redis, a real cluster of three: a slot is handed over under readers and writers") {
  if (!have_redis()) return;
  redis_processes all;
  run_real([&](asio::any_io_executor ex) -> awaitable<void> {
    co_await all.join();
    redis_store s(ex, all.url(2), {.piece_bytes = 3000, .lookup = 30s});
    CHECK(!co_await write_blocks(s, ns, 0, 10));
    const auto slot = slot_of_key(4);
    const auto from = all.owner_of(slot), to = (from + 1) % 3;
    int asked = 0;
    co_await all.migrate(slot, from, to, [&]() -> awaitable<void> {
      CHECK(co_await s.async_match(ns, contract_keys(0, 10), as_result) == 10);
      CHECK(co_await read_blocks(s, ns, 0, 10) == 10);
      ++asked;
    });
    CHECK(asked > 8);
    CHECK(co_await read_blocks(s, ns, 0, 10) == 10);
    CHECK(!co_await write_blocks(s, ns, 4, 1, {.force = true}));
    CHECK(co_await read_blocks(s, ns, 0, 10) == 10);
    redis_store later(ex, all.url(0), {.lookup = 30s});
    CHECK(co_await read_blocks(later, ns, 0, 10) == 10);
  });
}

TEST_CASE("redis, one real node: its scripts keep a head from outliving its pieces, and sweep up") {
  if (!have_redis()) return;
  redis_process one(false, "s3cret");
  run_real([&](asio::any_io_executor ex) -> awaitable<void> {
    const auto at = one.at().to_string();
    redis_store s(ex, "redis://:s3cret@" + at, {.piece_bytes = 3000, .ttl = 1000s, .lookup = 30s});
    CHECK((co_await one.ask({"PING"})).text == "PONG");
    CHECK(!co_await write_blocks(s, ns, 0, 2));
    const auto name = detail::head_name(ns, contract_keys(0, 1)[0]);
    const auto life = [&](std::string key) -> awaitable<long long> {
      co_return (co_await one.ask({"PTTL", std::move(key)})).integer;
    };
    const auto head = detail::redis_head::decode((co_await one.ask({"GET", name})).text, ns, contract_keys(0, 1)[0]);
    CHECK(head.has_value());
    if (!head) co_return;
    for (const auto& piece : detail::piece_names(*head)) CHECK(co_await life(piece) > co_await life(name));
    CHECK(co_await life(name) > 900'000);
    CHECK((co_await one.ask({"PEXPIRE", name, "5000"})).integer == 1);
    CHECK(co_await s.async_match(ns, contract_keys(0, 2), match_options{.refresh = true}, as_result) == 2);
    CHECK(co_await life(name) > 900'000);
    for (const auto& piece : detail::piece_names(*head)) CHECK(co_await life(piece) > co_await life(name));

    CHECK((co_await one.ask({"DEL", detail::piece_names(*head)[3]})).integer == 1);
    CHECK(co_await s.async_match(ns, contract_keys(0, 1), match_options{.refresh = true}, as_result) == 0);
    CHECK(co_await read_blocks(s, ns, 0, 2) == 0);
    for (int i = 0; i < 1000 && (co_await one.ask({"EXISTS", name})).integer == 1; ++i)
      co_await clock::of(ex).async_wait_for(5ms, asio::deferred);
    CHECK((co_await one.ask({"EXISTS", name})).integer == 0);
    CHECK((co_await one.ask({"EXISTS", detail::piece_names(*head)[0]})).integer == 0);
    CHECK(!co_await write_blocks(s, ns, 0, 2));
    CHECK(co_await read_blocks(s, ns, 0, 2) == 2);
    CHECK((co_await s.async_remove(ns, contract_keys(0, 1)[0], as_result)).has_value());
    CHECK((co_await s.async_remove(ns, contract_keys(1, 1)[0], as_result)).has_value());
    CHECK((co_await one.ask({"DBSIZE"})).integer == 0);

    redis_store forever(ex, "redis://default:s3cret@" + at, {.lookup = 30s});
    CHECK(!co_await write_blocks(forever, ns, 0, 1));
    CHECK(co_await life(name) == -1);
    const auto old = detail::redis_head::decode((co_await one.ask({"GET", name})).text, ns, contract_keys(0, 1)[0]);
    CHECK(old.has_value());
    if (!old) co_return;
    CHECK(co_await life(detail::piece_names(*old)[0]) == -1);
    CHECK(!co_await write_blocks(forever, ns, 0, 1, {.force = true}));
    for (const auto& piece : detail::piece_names(*old)) {
      CHECK(co_await life(piece) > 0);
      CHECK(co_await life(piece) <= 60'000);
    }
    CHECK(co_await life(name) == -1);
    CHECK(co_await read_blocks(forever, ns, 0, 1) == 1);
    redis_store none(ex, "redis://" + at, {.lookup = 30s});
    CHECK((co_await none.async_match(ns, contract_keys(0, 1), as_result)).error() == redis_errc::no_password);
    redis_store wrong(ex, "redis://:no@" + at, {.lookup = 30s});
    CHECK((co_await wrong.async_match(ns, contract_keys(0, 1), as_result)).error() == redis_errc::wrong_password);

    CHECK((co_await one.ask({"CONFIG", "SET", "maxmemory", "1"})).text == "OK");
    CHECK(co_await write_blocks(forever, ns, 5, 1) == errc::store_full);
    CHECK((co_await one.ask({"CONFIG", "SET", "maxmemory", "0"})).text == "OK");
    CHECK(!co_await write_blocks(forever, ns, 5, 1));
    CHECK((co_await one.ask({"REPLICAOF", "127.0.0.1", "1"})).text == "OK");
    CHECK(co_await write_blocks(forever, ns, 6, 1) == redis_errc::read_only);
    CHECK((co_await one.ask({"REPLICAOF", "NO", "ONE"})).text == "OK");
  });
}
