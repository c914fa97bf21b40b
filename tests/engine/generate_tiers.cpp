// Answers whose KV comes from tiers behind the device, which fail.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "cokv/kvstream/block_key.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "engine/generate_fixture.hpp"
#include "support/fault_store.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("generate: the same tokens when the KV of a prompt comes from a tier behind the device") {
  const auto prompt = psalm();
  for (auto type : {dtype::f32, dtype::bf16}) {
    const auto want = fixture(type).one(greedy(prompt, 20)).tokens;
    asio::io_context io{1};
    auto host = std::make_shared<memory_store>(io.get_executor(), memory_store_options{.limit_bytes = 64 << 20});
    for (int start : {0, 1, 2}) {  // an engine, and two that find what it left
      engine e(io.get_executor(), open_device(io.get_executor(), "cpu").value(), tiny_model(type), words(),
               {.max_batched_tokens = start == 2 ? 16u : 1024u, .tiers = {{.name = "host", .blocks = host}}});
      answer a;
      asio::co_spawn(io, collect(e.submit(greedy(prompt, 20)).value(), a), asio::detached);
      std::optional<error_code> drained;
      asio::co_spawn(
          io,
          [](engine& run, std::optional<error_code>& out) -> awaitable<void> {
            auto [ec] = co_await run.async_drain(asio::as_tuple(asio::deferred));
            out = ec;
          }(e, drained),
          asio::detached);
      io.restart();
      io.run();
      INFO("start ", start, " in ", to_string(type));
      CHECK(drained == error_code());
      CHECK(a.tokens == want);
      const auto whole = static_cast<std::uint32_t>((prompt.size() - 1) / 16 * 16);
      CHECK(a.report.cached_tokens == (start ? whole : 0));
      CHECK(a.report.cached_device_tokens == 0);
      CHECK(a.report.cached_tier_tokens == std::vector<std::uint32_t>{start ? whole : 0});
      CHECK(e.kv_counters().tiers[0].digest_failures == 0);
    }
  }
}

namespace {

// Serves prompts, some of which begin alike, from a tier that has what an engine before has left there.
std::vector<std::vector<token_id>> alike() {
  auto longer = psalm(), other = psalm();
  longer.resize(40);
  longer.insert(longer.end(), {5, 6, 7, 8, 9});
  other.insert(other.begin(), 300);
  return {psalm(), longer, other};
}

}  // namespace

TEST_CASE("generate: a tier that fails in the middle of a load changes no token, whatever was computed behind it") {
  std::vector<std::vector<token_id>> want;
  for (auto& p : alike()) want.push_back(fixture(dtype::bf16).one(greedy(p, 8)).tokens);
  asio::io_context io{1};
  auto d = open_device(io.get_executor(), "cpu").value();
  std::uint64_t cached = 0, failures = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    auto remote = std::make_shared<fault_store>(io.get_executor(), seed);
    for (bool filled : {false, true}) {
      if (filled) remote->fault = {.error = 0.02, .damaged = 0.01, .lost = 0.01};
      // The budget makes pieces of what is computed; the pool has no room for all at once.
      engine e(io.get_executor(), d, tiny_model(dtype::bf16), words(),
               {.kv_blocks = seed % 3 ? 60u : 14u,
                .max_batched_tokens = seed % 2 ? 8u : 1024u,
                .max_sequence = 128,
                .tiers = {{.name = "remote", .blocks = remote}}});
      std::vector<answer> got(3);
      for (std::size_t i = 0; i < got.size(); ++i)
        asio::co_spawn(io, collect(e.submit(greedy(alike()[i], 8)).value(), got[i]), asio::detached);
      io.restart();
      io.run();
      for (std::size_t i = 0; i < got.size(); ++i) {
        CHECK(got[i].tokens == want[i]);
        cached += got[i].report.cached_tokens;
      }
      CHECK(e.counters().blocks_in_use == 0);
      failures += e.kv_counters().tiers[0].load_failures;
    }
    CHECK(remote->readers == 0);
  }
  CHECK(cached > 1000);
  CHECK(failures > 50);
}

TEST_CASE(
    "generate: what a cancelled request's step still reads is not given to others, and what it computed is right") {
  const auto text = [](unsigned seed, std::size_t n) {
    std::vector<token_id> t;
    for (std::size_t i = 0; i < n; ++i)
      t.push_back(20 + static_cast<token_id>((seed = seed * 1664525u + 1013904223u) >> 8) % 900);
    return t;
  };
  const auto mine = text(1, 373), other = text(2, 324);
  asio::io_context io{1};
  auto d = open_device(io.get_executor(), "cpu", {.threads = 1}).value();
  const auto make = [&](std::shared_ptr<store> tier, engine_options o = {}) {
    o.tiers = {{.name = "host", .blocks = std::move(tier)}};
    return engine(io.get_executor(), d, tiny_model(dtype::f32), words(), std::move(o));
  };
  const auto ask = [&](engine& e, std::vector<token_id> prompt) {
    answer a;
    asio::co_spawn(io, collect(e.submit(greedy(std::move(prompt), 2)).value(), a), asio::detached);
    e.async_drain([](error_code) {});
    io.restart();
    io.run();
    return a;
  };
  const auto memory = [&] {
    return std::make_shared<memory_store>(io.get_executor(), memory_store_options{.limit_bytes = 64 << 20});
  };
  auto host = memory(), alone = memory();
  for (auto& prompt : {std::vector(mine.begin(), mine.begin() + 321), other}) {
    auto e = make(host);
    ask(e, prompt);
  }
  auto quiet = make(alone);
  ask(quiet, mine);

  auto e = make(host, {.kv_blocks = 26, .max_sequence = 416});
  std::atomic<bool> go = false;
  auto busy = d.make_stream({.name = "busy"}).value();
  CHECK(!busy.launch("wait", [&] { go.wait(false); }));
  {
    auto g = e.submit(greedy(mine, 4)).value();
    io.restart();
    io.poll();  // its KV is there, its step is enqueued behind the other stream's kernel
    REQUIRE(e.counters().steps == 1);
    REQUIRE(e.kv_counters().tiers[0].loaded_blocks == 20);
  }
  answer b;  // has room only where the other's prefix is
  asio::co_spawn(io, collect(e.submit(greedy(other, 2)).value(), b), asio::detached);
  io.poll();
  CHECK(e.kv_counters().tiers[0].loaded_blocks == 20);
  go = true;
  go.notify_all();
  e.async_drain([](error_code) {});
  io.restart();
  io.run();
  CHECK(b.tokens.size() == 2);
  const auto keys = chain_keys(mine, 16);
  for (std::size_t k = 0; k < keys.size(); ++k)
    for (std::uint32_t layer = 0; layer < 8; ++layer) {
      const auto got = host->stored_segment(e.kv_namespace(), keys[k], layer),
                 want = alone->stored_segment(e.kv_namespace(), keys[k], layer);
      REQUIRE(!want.empty());
      CHECK(std::ranges::equal(got.bytes(), want.bytes()));
    }
}

TEST_CASE("generate: cancelled or destroyed at any moment of a load, blocks are free and nothing is left behind") {
  asio::io_context io{1};
  auto d = open_device(io.get_executor(), "cpu").value();
  auto remote = std::make_shared<fault_store>(io.get_executor(), 1, faults{.slowest = {}});
  const auto run = [&](std::size_t turns, bool destroyed) {
    std::optional<engine> e;
    e.emplace(io.get_executor(), d, tiny_model(dtype::bf16), words(),
              engine_options{.tiers = {{.name = "remote", .blocks = remote}}});
    std::optional<generation> mine = e->submit(greedy(psalm(), 4)).value();
    io.restart();
    std::size_t n = 0;
    while (n < turns && io.run_one() != 0) ++n;
    if (destroyed)
      e.reset();
    else
      mine->cancel();
    io.restart();
    io.run();
    if (e) CHECK(e->counters().blocks_in_use == 0);
    e.reset();
    CHECK(remote->readers == 0);
    return n == turns;
  };
  run(~std::size_t{0}, false);  // fills the tier
  for (bool destroyed : {false, true}) {
    std::size_t turns = 0;
    while (run(turns, destroyed)) ++turns;
    CHECK(turns > 50);
  }
}
