#include "cokv/kvstream/transfer_group.hpp"

#include <doctest/doctest.h>

#include <numeric>

#include "cokv/kvstream/block_window.hpp"
#include "cokv/kvstream/local_window.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "kvstream/transfers.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

geometry small() { return geometry::attention(4, 2, 4, dtype::f32, 4); }

}  // namespace

TEST_CASE("a prefill loop flushes each layer while the next ones are computed, and joins") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    const auto g = small();
    auto dev = any_device(ex);
    auto compute = dev.make_stream({.name = "compute"}).value(), copies = dev.make_stream({.name = "copies"}).value();
    auto memory = blank(pool_bytes(g, 4));
    kv_view kv(g, memory, 4);
    local_window window(blank(4 * g.block_bytes()), copies);
    const std::vector<std::uint32_t> table = {0, 1, 2, 3};
    std::uint64_t bytes = 0;
    auto verdict = co_await with(transfer_group{window.to(), {.in_flight = 2}}, [&](auto& out) -> awaitable<void> {
      for (std::uint32_t layer = 0; layer < g.layers(); ++layer) {
        const auto at = segment_offset(g, 4, layer, 0);
        buffer part = memory.slice(at, 4 * g.segment_bytes(layer));
        compute.launch("layer",
                       [part, layer] { std::ranges::copy(patterned(part.size(), layer).bytes(), part.data()); });
        co_await out.gather(kv, slice(g, {layer, 1}, table), at, after(compute.record()));
      }
      CHECK(!co_await out.commit());
      bytes = out.bytes();
    });
    CHECK(verdict);
    CHECK(bytes == 4 * g.block_bytes());
    CHECK(same(window.memory().bytes(), memory.bytes()));
    CHECK(window.memory().bytes()[segment_offset(g, 4, 2, 0)] == byte_at(0, 2));
  });
}

TEST_CASE("a failed layer fails the scope: nothing of it becomes visible") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    const auto g = small();
    memory_store store(ex, {});
    std::vector<std::int32_t> tokens(8);
    std::iota(tokens.begin(), tokens.end(), 0);
    const auto keys = chain_keys(tokens, 4);
    for (bool fail : {true, false}) {
      auto line = std::make_shared<detail::timeline_core>(ex);
      auto memory = patterned(pool_bytes(g, 2));
      kv_view kv(g, memory, 2);
      sink to = blocks_to(co_await store.async_open_write({}, g.layout(), keys), g.layout(), 2);
      const transfer_group_options options{.in_flight = 8, .level = completion_level::local};
      auto verdict = co_await with(transfer_group{to, options}, [&](auto& out) -> awaitable<error_code> {
        for (std::uint32_t layer = 0; layer < g.layers(); ++layer)
          co_await out.gather(kv, slice(g, {layer, 1}, {1, 0}), layer_offset(g.layout(), 2, layer),
                              event(line, layer + 1));
        line->advance(2);
        fail ? line->fail(3, errc::device_failed) : line->advance(4);
        co_return co_await out.commit();
      });
      CHECK(static_cast<bool>(verdict) == !fail);
      if (fail) CHECK(verdict.error() == errc::device_failed);
      CHECK(co_await store.async_match({}, keys) == (fail ? 0 : 2));
    }
    for (std::uint32_t layer = 0; layer < g.layers(); ++layer) {
      auto memory = patterned(pool_bytes(g, 2));
      const auto n = g.segment_bytes(layer);
      CHECK(same(store.stored_segment({}, keys[0], layer).bytes(),
                 memory.slice(segment_offset(g, 2, layer, 1), n).bytes()));
    }
  });
}

TEST_CASE("the bound holds the body back") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto dev = any_device(ex);
    auto copies = dev.make_stream({.name = "copies"}).value();
    auto line = std::make_shared<detail::timeline_core>(ex);
    local_window window(blank(640), copies);
    int begun = 0;
    auto verdict = co_await with(transfer_group{window.to(), {.in_flight = 3}}, [&](auto& out) -> awaitable<void> {
      out.spawn([&]() -> awaitable<void> {
        for (int i = 0; i < 50; ++i) co_await asio::post(asio::deferred);
        CHECK(begun == 3);
        line->advance(1);
      });
      for (int i = 0; i < 10; ++i) {
        co_await out.flush(patterned(64, i), i * 64, event(line, 1));
        ++begun;
      }
    });
    CHECK(verdict);
    CHECK(begun == 10);
    for (int i = 0; i < 10; ++i) CHECK(same(window.memory().slice(i * 64, 64).bytes(), patterned(64, i).bytes()));
  });
}

TEST_CASE("a scope of transfers can be cancelled and destroyed at every step") {
  auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    auto dev = any_device(ex);
    auto copies = dev.make_stream({.name = "copies"}).value();
    local_window window(blank(640), copies);
    auto source = patterned(640);
    auto verdict = co_await with(transfer_group{window.to(), {.in_flight = 2}}, [&](auto& out) -> awaitable<void> {
      for (int i = 0; i < 10; ++i) co_await out.flush(source.slice(i * 64, 64), i * 64);
      co_await out.commit();
    });
    CHECK(copies.in_flight() == 0);  // a scope that has ended leaves no transfer behind
    if (verdict) CHECK(same(window.memory().bytes(), source.bytes()));
  };
  cancel_at_every_step(body, {.real = false, .seeds = 1});
  destroy_at_every_step(body, {.real = false, .seeds = 1});
}
