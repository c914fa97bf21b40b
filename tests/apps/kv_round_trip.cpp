// "KV that came back is byte for byte what went out": the bundled model's KV through each kind of tier, a fresh pool
// each time, and the pools compared.
#include <filesystem>
#include <map>
#include <set>

#include "cache/fixture.hpp"
#include "cokv/engine/engine.hpp"
#include "cokv/kvstream/file_store.hpp"
#include "engine/expected.hpp"
#include "support/remove_folder.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr std::uint32_t block_tokens = 16, blocks = 12;

std::vector<token_id> prompt() {
  static const auto text = tokenizer::load(model_dir());
  return text.encode(
      "The LORD is my shepherd; I shall not want. He maketh me to lie down in green pastures: he leadeth me beside the "
      "still waters. He restoreth my soul: he leadeth me in the paths of righteousness for his name's sake.");
}

std::uint32_t whole_blocks() { return static_cast<std::uint32_t>((prompt().size() - 1) / block_tokens); }

// Every block of the pool that has KV of all its tokens, all layers in one string. What was never written is poison.
std::set<std::string> full_blocks(const kv_pool& pool, std::byte poison) {
  std::set<std::string> out;
  const auto& g = pool.shape();
  for (std::uint32_t b = 0; b < pool.blocks(); ++b) {
    std::string all;
    bool full = true;
    for (std::uint32_t l = 0; l < g.layers(); ++l) {
      const auto part = pool.memory().bytes().subspan(pool.offset(l, b), g.segment_bytes(l));
      // The last token of the last plane of the last head ends the segment.
      full = full && std::ranges::any_of(part.last(16), [&](std::byte x) { return x != poison; });
      all.append(reinterpret_cast<const char*>(part.data()), part.size());
    }
    if (full) out.insert(std::move(all));
  }
  return out;
}

struct ran {
  std::set<std::string> kv;
  generation_report report;
  kv_tier_counters tier;
};

// An engine with a pool of its own computes one token of the prompt, and saves what it may.
awaitable<ran> run(asio::any_io_executor ex, dtype type, std::shared_ptr<store> tier, std::byte poison,
                   std::uint32_t budget) {
  engine e(ex, open_device(ex, "cpu").value(), tiny_model(type), std::nullopt,
           {.kv_blocks = blocks,
            .block_tokens = block_tokens,
            .max_batched_tokens = budget,
            .tiers = {{.name = "tier", .blocks = std::move(tier)}}});
  std::ranges::fill(e.pool().memory().bytes(), poison);
  auto g = e.submit({.prompt = prompt(), .max_tokens = 1, .sampling = {.temperature = 0}}).value();
  co_await g.async_next();
  auto [ec, none] = co_await g.async_next(asio::as_tuple(asio::deferred));
  CHECK(ec == asio::error::eof);
  co_await e.async_drain();
  co_return ran{full_blocks(e.pool(), poison), g.report(), e.kv_counters().tiers[0]};
}

// What an engine computes, another one with the store opened anew loads.
template <class Open>
awaitable<void> there_and_back(asio::any_io_executor ex, dtype type, Open open) {
  const auto whole = whole_blocks();
  ran computed, loaded;
  {
    auto tier = co_await open();
    computed = co_await run(ex, type, tier, std::byte{0xdd}, 1024);
  }
  CHECK(computed.report.cached_tokens == 0);
  CHECK(computed.tier.saved_blocks == whole);
  CHECK(computed.kv.size() == whole);
  {
    auto tier = co_await open();
    loaded = co_await run(ex, type, tier, std::byte{0xee}, 16);
  }
  CHECK(loaded.report.cached_tier_tokens == std::vector<std::uint32_t>{whole * block_tokens});
  CHECK(loaded.tier.loaded_blocks == whole);
  CHECK(loaded.tier.digest_failures == 0);
  CHECK(loaded.kv.size() == whole);
  CHECK(loaded.kv == computed.kv);
}

template <class Body>
void in_both_types(Body body) {
  for (auto type : {dtype::f32, dtype::bf16}) {
    INFO(to_string(type));
    co_test([&](asio::any_io_executor ex) -> awaitable<void> { return body(ex, type); }, {.seeds = 0});
  }
}

}  // namespace

TEST_CASE("KV that came back from host memory is byte for byte what went out") {
  in_both_types([](asio::any_io_executor ex, dtype type) -> awaitable<void> {
    auto host = std::make_shared<memory_store>(ex, memory_store_options{.limit_bytes = 64 << 20});
    co_await there_and_back(ex, type, [&]() -> awaitable<std::shared_ptr<store>> { co_return host; });
  });
}

TEST_CASE("KV that came back from a folder is byte for byte what went out") {
  struct folder {
    std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("cokv_round_trip_" + std::to_string(::getpid()));
    ~folder() { test::remove_folder(path); }
  };
  in_both_types([](asio::any_io_executor ex, dtype type) -> awaitable<void> {
    folder dir;
    co_await there_and_back(ex, type, [&]() -> awaitable<std::shared_ptr<store>> {
      auto s = co_await file_store::async_open(ex, {.directory = dir.path.string()});
      co_return std::shared_ptr<store>(std::move(s));
    });
  });
}

TEST_CASE("KV that came back from the cache server is byte for byte what went out") {
  in_both_types([](asio::any_io_executor ex, dtype type) -> awaitable<void> {
    cache_server server(ex);
    co_await there_and_back(ex, type, [&]() -> awaitable<std::shared_ptr<store>> {
      co_return std::make_shared<http_store>(ex, server.url());
    });
    server.stop();
  });
}
