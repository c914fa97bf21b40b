// Links over UCX between two ends in one process, cut off at any step.
#include <cstring>

#include "kvstream/transfers.hpp"
#include "linked.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

awaitable<void> whole_exchange(bool& ended) {
  auto l = co_await linked({.chunk = 64 << 10});
  auto memory = blank(400'000), data = patterned(400'000), back = blank(400'000);
  auto w = l->there.expose({memory.slice(0, 100'001), memory.slice(100'001, 299'999)}, window_access::both).value();
  co_await async_flush(data, l->near.to(w.ref()), 0);
  CHECK(same(memory, data));
  co_await async_fetch(l->near.from(w.ref()), 0, back);
  CHECK(same(back, data));
  co_await l->near.async_send(link_message(10));
  co_await l->far.async_receive();
  co_await l->near.to(w.ref()).async_commit();
  co_await w.async_revoke();
  l->near.close();
  co_await l->far.async_closed();
  ended = true;
}

}  // namespace

TEST_CASE("ucx: two ends of a link, however the loop is driven") {
  for (auto how : {driven::by_cokv_run, driven::by_context_run}) {
    bool ended = false;
    run_body(whole_exchange(ended), how);
    CHECK(ended);
  }
}

TEST_CASE("ucx: messages of any size come in order") {
  run_body([]() -> awaitable<void> {
    auto l = co_await linked();
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn([&]() -> awaitable<void> {
        for (std::size_t i = 0; i < 300; ++i) co_await l->near.async_send(link_message(i * 200, std::byte(i)));
      });
      for (std::size_t i = 0; i < 300; ++i)
        CHECK(co_await l->far.async_receive() == link_message(i * 200, std::byte(i)));
    });
    CHECK(!v.error());
  }());
}

TEST_CASE("ucx: what is put lies in the window, what is got is what lies there, whatever the pieces") {
  for (auto digest : {digest_algorithm::none, digest_algorithm::xxh3_64})
    for (std::uint32_t connections : {1u, 3u})
      for (auto [piece, chunk] : {std::pair<std::size_t, std::uint64_t>{3'000'001, 1 << 20},
                                  {100'000, 4 << 20},
                                  {20'011, 64 << 10},
                                  {999, 1 << 20}})
        run_body([](digest_algorithm digest, std::uint32_t connections, std::size_t piece,
                    std::uint64_t chunk) -> awaitable<void> {
          auto l = co_await linked({.digest = digest, .connections = connections, .credits = 8, .chunk = chunk});
          const std::size_t bytes = 3'000'001;
          const auto data = patterned(bytes, piece);
          auto memory = blank(bytes), back = blank(bytes), part = blank(1000);
          auto w = l->there.expose(pieces_of(memory, piece), window_access::both).value();
          co_await async_flush(data, l->near.to(w.ref()), 0);
          CHECK(same(memory, data));
          co_await async_fetch(l->near.from(w.ref()), 0, back);
          CHECK(same(back, data));
          co_await async_fetch(l->near.from(w.ref()), 70'007, part);
          CHECK(same(part, data.slice(70'007, 1000)));
          // Many pieces of this side in one chunk.
          std::ranges::fill(memory.bytes(), std::byte{});
          auto to = l->near.to(w.ref());
          auto mixed = to.backend()->put(0, pieces_of(data, 30'001), {});
          CHECK(!co_await std::move(mixed));
          CHECK(same(memory, data));
        }(digest, connections, piece, chunk));
}

TEST_CASE("ucx: nothing writes a window's memory after its revocation, and the link lives on") {
  for (int round = 0; round < 12; ++round)
    run_body([](int round) -> awaitable<void> {
      auto l = co_await linked({.chunk = 256 << 10});
      auto memory = blank(16 << 20);
      const auto data = patterned(16 << 20);
      auto w = l->there.expose(pieces_of(memory, 300'000), window_access::put).value();
      auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        group.spawn([&]() -> awaitable<void> {
          const auto put = co_await async_flush(data, l->near.to(w.ref()), 0, {}, completion_level::visible, as_result);
          CHECK((put.has_value() || put.error() == errc::stale_reference));
        });
        while (w.bytes_put() < static_cast<std::uint64_t>(round) << 20) co_await asio::post(asio::deferred);
        CHECK((co_await w.async_revoke(as_result)).has_value());
        CHECK(memory.use_count() == 1);
        std::memset(memory.data(), 0x55, memory.size());
      });
      CHECK(!v.error());
      CHECK(!l->near.error());
      co_await l->near.async_send(link_message(10'000));
      CHECK((co_await l->far.async_receive()).size() == 10'000);
      CHECK(same(memory, blank(memory.size(), 0x55)));
    }(round));
}

TEST_CASE("ucx: whole windows of 256 MiB") {
  run_body([]() -> awaitable<void> {
    auto l = co_await linked({.chunk = 16 << 20});
    const std::size_t bytes = std::size_t{256} << 20;
    auto memory = buffer::host(bytes);
    const auto data = patterned(bytes);
    auto w = l->there.expose({memory}, window_access::both).value();
    co_await async_flush(data, l->near.to(w.ref()), 0);
    CHECK(same(memory, data));
  }());
}

TEST_CASE("ucx: who leaves in the middle is an error to what is under way, and nothing is left of it") {
  for (bool receiver : {false, true})
    run_body([](bool receiver) -> awaitable<void> {
      auto l = co_await linked({.chunk = 1 << 20});
      auto memory = blank(64 << 20);
      auto data = patterned(64 << 20);
      auto w = l->there.expose({memory}, window_access::put).value();
      auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        group.spawn([&]() -> awaitable<void> {
          const auto put = co_await async_flush(data, l->near.to(w.ref()), 0, {}, completion_level::visible, as_result);
          CHECK(put.error() == errc::closed);
        });
        while (w.bytes_put() < (std::uint64_t{4} << 20)) co_await asio::post(asio::deferred);
        (receiver ? l->far : l->near).close();
      });
      CHECK(!v.error());
      CHECK((co_await l->near.async_closed(as_result)).has_value());
      CHECK((co_await l->far.async_closed(as_result)).has_value());
      CHECK((co_await w.async_revoke(as_result)).has_value());
      CHECK(memory.use_count() == 1);
    }(receiver));
}

TEST_CASE("ucx: nobody there, a door that closes, a port that is taken") {
  run_body([]() -> awaitable<void> {
    window_table windows(co_await asio::this_coro::executor);
    auto door = link_listener::listen(windows, "ucx://127.0.0.1:0").value();
    const auto url = door.url();
    CHECK(link_listener::listen(windows, url).error() == asio::error::address_in_use);
    door.close();
    CHECK((co_await door.async_accept(as_result)).error() == errc::closed);
    const link_options hasty{.greeting = 5s};
    CHECK((co_await async_connect(windows, url, hasty, as_result)).error() == asio::error::connection_refused);
    CHECK((co_await async_connect(windows, "ucx://no-such-host.invalid:1", hasty, as_result)).error());
  }());
}

TEST_CASE("ucx: cancelled after any number of handlers, everything ends") {
  std::size_t steps = 0;
  for (bool whole = false; !whole && steps < 5000; steps += 1 + steps / 8) {
    asio::io_context context(1);
    asio::cancellation_signal stop;
    bool over = false;
    asio::co_spawn(context, whole_exchange(whole),
                   asio::bind_cancellation_slot(stop.slot(), [&](std::exception_ptr) { over = true; }));
    for (std::size_t i = 0; i < steps && !over; ++i) context.run_one();
    stop.emit(asio::cancellation_type::all);
    context.run();
    CHECK(over);
  }
  CHECK(steps > 50);
  CHECK(steps < 5000);
}

TEST_CASE("ucx: a context destroyed after any number of handlers leaves nothing behind") {
  for (std::size_t steps = 0; steps < 600; steps += 1 + steps / 8) {
    bool whole = false;
    asio::io_context context(1);
    asio::co_spawn(context, whole_exchange(whole), asio::detached);
    for (std::size_t i = 0; i < steps && !whole; ++i) context.run_one();
  }
}
