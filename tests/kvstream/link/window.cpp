#include "cokv/kvstream/window.hpp"

#include <doctest/doctest.h>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "kvstream/transfers.hpp"
#include "link/window_state.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("window: what can't be one is refused, and a table is bounded") {
  asio::io_context context(1);
  window_table table(context.get_executor(), 2);
  CHECK(table.expose({}, window_access::put).error() == errc::invalid_argument);
  CHECK(table.expose({buffer(), buffer::host(0)}, window_access::put).error() == errc::invalid_argument);
  auto device = buffer::adopt(nullptr, 8, memory_kind::device, nullptr);
  CHECK(table.expose({device}, window_access::put).error() == errc::wrong_device);
  auto a = table.expose({buffer::host(3), buffer(), buffer::host(4)}, window_access::put).value();
  CHECK(a.ref().size == 7);
  auto b = table.expose({buffer::host(1)}, window_access::get).value();
  CHECK(a.ref().generation != b.ref().generation);
  CHECK(table.expose({buffer::host(1)}, window_access::put).error() == errc::queue_full);
  b = {};
  CHECK(table.size() == 1);
  CHECK(table.expose({buffer::host(1)}, window_access::put).has_value());
}

TEST_CASE("window: a number is used again, its generation is not") {
  asio::io_context context(1);
  window_table table(context.get_executor());
  window_ref before;
  for (int i = 0; i < 100; ++i) {
    auto w = table.expose({buffer::host(1)}, window_access::both).value();
    if (i > 0) CHECK(w.ref().id == before.id);
    if (i > 0) CHECK(w.ref().generation != before.generation);
    CHECK(table.registry()->find(before, window_access::put, 0, 0).error() == errc::stale_reference);
    before = w.ref();
    CHECK(table.registry()->find(before, window_access::both, 1, 0).has_value());
    CHECK(table.registry()->find(before, window_access::both, 2, 0).error() == errc::out_of_range);
    CHECK(table.registry()->find(before, window_access::both, ~0ull, 2).error() == errc::out_of_range);
  }
}

TEST_CASE("window: ranges go over pieces, wherever they begin and end") {
  asio::io_context context(1);
  window_table table(context.get_executor());
  const auto memory = patterned(20);
  auto w = table.expose({memory.slice(0, 3), memory.slice(3, 1), memory.slice(4, 16)}, window_access::both).value();
  const auto state = table.registry()->find(w.ref(), window_access::both, 0, 20).value();
  for (std::uint64_t at = 0; at <= 20; ++at)
    for (std::uint64_t n = 0; at + n <= 20; ++n) {
      std::vector<std::byte> got;
      for (const auto& piece : detail::range_of(*state, at, n))
        got.insert(got.end(), piece.bytes().begin(), piece.bytes().end());
      CHECK(same(got, memory.slice(at, n).bytes()));
    }
}

TEST_CASE("window: revoking waits for who uses it, committing for who puts") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    window_table table(ex);
    auto memory = buffer::host(10);
    auto w = table.expose({memory}, window_access::both).value();
    const auto state = table.registry()->find(w.ref(), window_access::both, 0, 10).value();
    int put_told = 0, get_told = 0;
    auto put = std::make_unique<detail::window_use>(state, window_access::put, [&] { ++put_told; });
    auto get = std::make_unique<detail::window_use>(state, window_access::get, [&] { ++get_told; });
    state->commit();
    CHECK(put_told == 1);
    CHECK(get_told == 0);
    CHECK(!w.committed());
    bool committed = false;
    w.async_committed([&](error_code ec) { committed = !ec; });
    for (int i = 0; i < 10; ++i) co_await asio::post(asio::deferred);
    CHECK(!committed);
    put.reset();
    for (int i = 0; i < 10 && !committed; ++i) co_await asio::post(asio::deferred);
    CHECK(committed);
    CHECK(w.committed());
    CHECK((co_await w.async_committed(as_result)).has_value());
    CHECK(table.registry()->find(w.ref(), window_access::put, 0, 1).error() == errc::closed);
    CHECK(table.registry()->find(w.ref(), window_access::get, 0, 1).has_value());
    bool revoked = false;
    w.async_revoke([&](error_code ec) { revoked = !ec; });
    CHECK(get_told == 1);
    CHECK(put_told == 1);  // told once
    co_await asio::post(asio::deferred);
    CHECK(!revoked);
    get.reset();
    for (int i = 0; i < 10 && !revoked; ++i) co_await asio::post(asio::deferred);
    CHECK(revoked);
    CHECK(memory.use_count() == 1);
    CHECK((co_await w.async_revoke(as_result)).has_value());
    CHECK((co_await table.expose({memory}, window_access::put)->async_revoke(as_result)).has_value());
  });
}
