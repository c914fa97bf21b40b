#include "cokv/kvstream/transfer.hpp"

#include <doctest/doctest.h>

#include <boost/asio/use_future.hpp>
#include <numeric>

#include "cokv/kvstream/block_window.hpp"
#include "cokv/kvstream/local_window.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "kvstream/transfers.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

stream make_stream(device& d, std::size_t in_flight = 64) {
  return d.make_stream({.name = "copies", .max_in_flight = in_flight}).value();
}

// An event that the test settles.
struct gate {
  explicit gate(const asio::any_io_executor& ex) : line(std::make_shared<detail::timeline_core>(ex)) {}
  event at() const { return {line, 1}; }
  void open() { line->advance(1); }
  void fail(error_code ec) { line->fail(1, ec); }
  std::shared_ptr<detail::timeline_core> line;
};

}  // namespace

TEST_CASE("a chunk is flushed to where it belongs and fetched back") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto dev = any_device(ex);
    auto copies = make_stream(dev);
    local_window window(blank(4096), copies);
    auto sent = co_await async_flush(patterned(100), window.to(), 1000);
    CHECK(sent.bytes == 100);
    CHECK(same(window.memory().slice(1000, 100).bytes(), patterned(100).bytes()));
    CHECK(window.memory().bytes()[999] == std::byte{0xdd});
    CHECK(window.memory().bytes()[1100] == std::byte{0xdd});
    auto back = blank(100);
    auto got = co_await async_fetch(window.from(), 1000, back);
    CHECK(got.bytes == 100);
    CHECK(same(back.bytes(), patterned(100).bytes()));
    CHECK((co_await async_flush(buffer(), window.to(), 4096)).bytes == 0);
  });
}

TEST_CASE("what does not fit, or is more than the sink can promise, is refused and moves nothing") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto dev = any_device(ex);
    local_window window(blank(64), make_stream(dev));
    for (std::uint64_t offset : {std::uint64_t{1}, std::uint64_t{65}, ~std::uint64_t{0}}) {
      auto r = co_await async_flush(patterned(64), window.to(), offset, {}, completion_level::visible, as_result);
      CHECK(r.error() == errc::out_of_range);
      auto back = co_await async_fetch(window.from(), offset, blank(64), {}, as_result);
      CHECK(back.error() == errc::out_of_range);
    }
    auto durable = co_await async_flush(patterned(8), window.to(), 0, {}, completion_level::durable, as_result);
    CHECK(durable.error() == errc::unsupported);
    CHECK(same(window.memory().bytes(), blank(64).bytes()));
  });
}

TEST_CASE("a flush begins after its event, and fails with it") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto dev = any_device(ex);
    gate computed(ex);
    buffer chunk = blank(64);
    local_window window(blank(64), make_stream(dev));
    auto v = co_await with(task_group{}, [&](task_group& g) -> awaitable<void> {
      g.spawn([&]() -> awaitable<void> { co_await async_flush(chunk, window.to(), 0, after(computed.at())); });
      for (int i = 0; i < 5; ++i) co_await asio::post(asio::deferred);
      std::ranges::copy(patterned(64).bytes(), chunk.bytes().begin());
      computed.open();
    });
    CHECK(v);
    CHECK(same(window.memory().bytes(), patterned(64).bytes()));

    gate failed(ex);
    failed.fail(errc::device_failed);
    auto r = co_await async_flush(chunk, window.to(), 0, failed.at(), completion_level::visible, as_result);
    CHECK(r.error() == errc::device_failed);
    auto next = co_await async_flush(chunk, window.to(), 0, {}, completion_level::visible, as_result);
    CHECK(next.has_value());  // the stream is well
  });
}

TEST_CASE("transfers wait for room on a stream and all arrive") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto dev = any_device(ex);
    local_window window(blank(64 * 50), make_stream(dev, 2));
    auto all = patterned(64 * 50);
    auto v = co_await with(task_group{}, [&](task_group& g) -> awaitable<void> {
      for (int i = 0; i < 50; ++i)
        g.spawn([&, i]() -> awaitable<void> { co_await async_flush(all.slice(i * 64, 64), window.to(), i * 64); });
      co_return;
    });
    CHECK(v);
    CHECK(same(window.memory().bytes(), all.bytes()));
  });
}

TEST_CASE("a flush takes every completion token") {
  asio::io_context ctx(1);
  auto dev = any_device(ctx.get_executor());
  local_window window(blank(64), make_stream(dev));
  int callback = 0;
  async_flush(patterned(64), window.to(), 0, {}, completion_level::visible,
              [&](error_code ec, transferred t) { callback = ec ? -1 : static_cast<int>(t.bytes); });
  auto future = async_fetch(window.from(), 0, blank(64), {}, asio::use_future);
  auto later = async_flush(patterned(64), window.to(), 0);
  std::move(later)([&](error_code ec, transferred) { callback += ec ? 1000 : 1; });
  ctx.run();
  CHECK(callback == 65);
  CHECK(future.get().bytes == 64);
}

TEST_CASE("a transfer under way drains when asked to, and terminal leaves its buffers to the stream") {
  for (auto kind : {asio::cancellation_type::total, asio::cancellation_type::partial, asio::cancellation_type::all,
                    asio::cancellation_type::terminal}) {
    co_test([=](asio::any_io_executor ex) -> awaitable<void> {
      auto dev = any_device(ex);
      auto copies = make_stream(dev);
      gate computed(ex);
      local_window window(blank(64), copies);
      buffer chunk = patterned(64);
      asio::cancellation_signal signal;
      std::optional<error_code> done;
      async_flush(chunk, window.to(), 0, computed.at(), completion_level::visible,
                  asio::bind_cancellation_slot(
                      signal.slot(), asio::bind_executor(ex, [&](error_code ec, transferred) { done = ec; })));
      for (int i = 0; i < 5; ++i) co_await asio::post(asio::deferred);
      CHECK(!done);
      signal.emit(kind);
      for (int i = 0; i < 10; ++i) co_await asio::post(asio::deferred);
      CHECK(chunk.use_count() > 1);
      if (kind == asio::cancellation_type::terminal) {
        CHECK(done == error_code(asio::error::operation_aborted));
      } else {
        CHECK(!done);
      }
      computed.open();
      co_await copies.async_drain();
      for (int i = 0; i < 10; ++i) co_await asio::post(asio::deferred);
      REQUIRE(done);
      if (kind != asio::cancellation_type::terminal) CHECK(!*done);
      CHECK(same(window.memory().bytes(), patterned(64).bytes()));
      CHECK(chunk.use_count() == 1);
    });
  }
}

TEST_CASE("blocks of a store are a sink and a source, layer by layer, visible by commit alone") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    const auto g = geometry::attention(3, 2, 4, dtype::f32, 4);
    const auto layout = g.layout();
    memory_store store(ex, {});
    std::vector<std::int32_t> tokens(8);
    std::iota(tokens.begin(), tokens.end(), 0);
    const auto keys = chain_keys(tokens, 4);
    const auto layer_bytes = g.segment_bytes(0) * 2;
    CHECK(layer_offset(layout, 2, 2) == 2 * layer_bytes);

    sink to = blocks_to(co_await store.async_open_write({}, layout, keys), layout, 2);
    CHECK(to.size() == 2 * g.block_bytes());
    auto visible = co_await async_flush(patterned(layer_bytes), to, 0, {}, completion_level::visible, as_result);
    CHECK(visible.error() == errc::unsupported);
    auto across = co_await async_flush(patterned(layer_bytes), to, 8, {}, completion_level::local, as_result);
    CHECK(across.error() == errc::invalid_argument);
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      for (std::uint32_t l = 0; l < 3; ++l)  // at once: the window takes them one after the other
        group.spawn([&, l]() -> awaitable<void> {
          co_await async_flush(patterned(layer_bytes, l), to, l * layer_bytes, {}, completion_level::local);
        });
      co_return;
    });
    CHECK(v);
    CHECK(co_await store.async_match({}, keys) == 0);
    co_await to.async_commit();
    CHECK(co_await store.async_match({}, keys) == 2);

    source from = blocks_from(co_await store.async_open_read({}, layout, keys), layout, 2);
    for (std::uint32_t l = 0; l < 3; ++l) {
      auto back = blank(layer_bytes);
      co_await async_fetch(from, l * layer_bytes, back);
      CHECK(same(back.bytes(), patterned(layer_bytes, l).bytes()));
    }
    store.stored_segment({}, keys[1], 1).bytes()[3] ^= std::byte{1};
    source damaged = blocks_from(co_await store.async_open_read({}, layout, keys), layout, 2);
    co_await async_fetch(damaged, 0, blank(layer_bytes));
    auto bad = co_await async_fetch(damaged, layer_bytes, blank(layer_bytes), {}, as_result);
    CHECK(bad.error() == errc::not_found);
  });
}

TEST_CASE("a flush and a fetch can be cancelled and destroyed at every step") {
  auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    auto dev = any_device(ex);
    auto copies = make_stream(dev, 1);
    local_window window(blank(64 * 4), copies);
    auto v = co_await with(task_group{}, [&](task_group& g) -> awaitable<void> {
      for (int i = 0; i < 4; ++i)
        g.spawn([&, i]() -> awaitable<void> {
          co_await async_flush(patterned(64, i), window.to(), i * 64);
          auto back = blank(64);
          co_await async_fetch(window.from(), i * 64, back);
          CHECK(same(back.bytes(), patterned(64, i).bytes()));
        });
      co_return;
    });
    (void)v;
  };
  cancel_at_every_step(body, {.real = false, .seeds = 1});
  destroy_at_every_step(body, {.real = false, .seeds = 1});
}
