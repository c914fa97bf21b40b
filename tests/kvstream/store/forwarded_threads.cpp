// Contexts with a thread each fill and read the memory of one store, which belongs to another.
#include <doctest/doctest.h>

#include <random>

#include "cokv/kvstream/digest.hpp"
#include "cokv/kvstream/forwarded_store.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/result.hpp"

using namespace cokv;

namespace {

const namespace_id ns = namespace_id::of("m", geometry::attention(3, 2, 4, dtype::f32));
const block_layout layout{{3000, 700, 5000}};

std::vector<block_key> keys_of(std::uint32_t first, std::uint32_t count) {
  std::vector<block_key> out;
  for (auto i = first; i < first + count; ++i) out.push_back(root_key(std::to_string(i)));
  return out;
}

std::byte content(std::uint32_t block, std::uint32_t layer) { return static_cast<std::byte>(block * 5 + layer); }

struct tally {
  std::uint64_t written = 0, refused = 0, read = 0, wrong = 0;
};

// A store that others write to and read at the same time, and that has room for few of all these blocks.
awaitable<void> write_and_read(forwarded_store& s, unsigned seed, int rounds, tally& t) {
  std::mt19937 random(seed);
  for (int round = 0; round < rounds; ++round) {
    const auto first = static_cast<std::uint32_t>(random() % 20), count = static_cast<std::uint32_t>(1 + random() % 4);
    auto writer = co_await s.async_open_write(ns, layout, keys_of(first, count), {}, as_result);
    if (!writer) {
      ++t.refused;
      continue;
    }
    for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
      std::vector<std::uint64_t> digests(count);
      const auto places = (*writer)->place(layer);
      for (std::uint32_t i = 0; i < count; ++i) {
        if (places[i].empty()) continue;
        std::fill_n(places[i].data(), places[i].size(), content(first + i, layer));
        digests[i] = digest_of(places[i].bytes());
      }
      co_await (*writer)->async_placed(layer, std::move(digests));
    }
    if (random() % 4 == 0) continue;  // given up
    co_await (*writer)->async_commit();
    ++t.written;
    auto reader = co_await s.async_open_read(ns, layout, keys_of(first, count));
    for (std::uint32_t layer = 0; layer < layout.layers(); ++layer)
      for (std::uint32_t i = 0; const auto& view : co_await reader->async_view(layer)) {
        ++t.read;
        const auto wanted = content(first + i++, layer);
        for (const auto b : view.bytes.bytes()) t.wrong += b != wanted;
        t.wrong += view.digest != digest_of(view.bytes.bytes());
      }
    if (random() % 8 == 0) (void)co_await s.async_remove(ns, keys_of(first, 1)[0], as_result);
  }
}

}  // namespace

TEST_CASE("forwarded store: shards fill and read one store's memory at the same time") {
  asio::io_context context(1);
  const auto ex = context.get_executor();
  std::vector<tally> tallies(3);
  {
    memory_store blocks(ex, {.limit_bytes = 12 * layout.bytes()});
    shards workers(ex, tallies.size());
    bool over = false;
    asio::co_spawn(
        ex,
        [&]() -> awaitable<void> {
          const auto home = forwarded_store::home_of(ex);
          auto v = co_await workers.run([&, home](shard_ref self) -> awaitable<void> {
            forwarded_store here(co_await asio::this_coro::executor, home, blocks);
            co_await write_and_read(here, static_cast<unsigned>(self.index() + 1), 300, tallies[self.index()]);
          });
          CHECK(bool(v));
          over = true;
        },
        asio::detached);
    while (!over) context.run_one();
    workers.stop();
    context.poll();  // what was dropped there ends here
    const auto info = blocks.info();
    CHECK(info.used_bytes == info.blocks * layout.bytes());
    CHECK(info.evicted_blocks > 0);
  }
  for (const auto& t : tallies) {
    CHECK(t.written > 100);
    CHECK(t.read > 300);
    CHECK(t.wrong == 0);
  }
}

TEST_CASE("forwarded store: shards that are cancelled in the middle leave nothing behind") {
  for (int round = 0; round < 20; ++round) {
    asio::io_context context(1);
    const auto ex = context.get_executor();
    memory_store blocks(ex, {.limit_bytes = 12 * layout.bytes()});
    std::vector<tally> tallies(2);
    shards workers(ex, tallies.size());
    asio::cancellation_signal stop;
    bool over = false;
    const auto all = [&]() -> awaitable<void> {
      const auto home = forwarded_store::home_of(ex);
      auto v = co_await workers.run([&, home](shard_ref self) -> awaitable<void> {
        forwarded_store here(co_await asio::this_coro::executor, home, blocks);
        co_await write_and_read(here, static_cast<unsigned>(self.index() + 1), 1000000, tallies[self.index()]);
      });
      CHECK(!v);
    };
    asio::co_spawn(ex, all(), asio::bind_cancellation_slot(stop.slot(), [&](std::exception_ptr) { over = true; }));
    for (int i = 0; i < 40 + 60 * round; ++i) context.run_one();
    stop.emit(asio::cancellation_type::terminal);
    while (!over) context.run_one();
    workers.stop();
    context.poll();
    const auto info = blocks.info();
    CHECK(info.used_bytes == info.blocks * layout.bytes());
    for (const auto& t : tallies) CHECK(t.wrong == 0);
  }
}
