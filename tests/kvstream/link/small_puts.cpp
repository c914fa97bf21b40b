// Puts and gets that begin without a coroutine, and travel together.
#include <doctest/doctest.h>

#include <deque>

#include "cokv/kvstream/peer_link.hpp"
#include "cokv/kvstream/transfer_group.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "kvstream/transfers.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

struct two_sides {
  window_table here, there;
  link_listener door;
  peer_link near, far;
  explicit two_sides(asio::any_io_executor ex) : here(ex), there(ex) {}
};

awaitable<std::unique_ptr<two_sides>> connected(link_options options = {}) {
  auto l = std::make_unique<two_sides>(co_await asio::this_coro::executor);
  l->door = link_listener::listen(l->there, "tcp://localhost:0", options).value();
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> { l->far = co_await l->door.async_accept(); });
    l->near = co_await async_connect(l->here, l->door.url(), options);
  });
  co_return v ? std::move(l) : nullptr;
}

co_options few(std::size_t seeds = 50) {
  co_options o;
  o.seeds = seeds;
  return o;
}

// What async_flush and async_fetch say, kept.
struct outcome {
  explicit outcome(const asio::any_io_executor& ex) : ended(ex, 0) {}

  semaphore ended;
  bool over = false;
  error_code ec;
  std::uint64_t bytes = 0;
  asio::cancellation_signal signal;

  auto token() {
    return asio::bind_cancellation_slot(signal.slot(), [this](error_code e, transferred t) {
      CHECK(!over);
      over = true;
      ec = e;
      bytes = t.bytes;
      ended.release();
    });
  }
  awaitable<void> wait() { (void)co_await ended.async_acquire(1, asio::as_tuple(asio::deferred)); }
};

std::deque<outcome> outcomes(const asio::any_io_executor& ex, std::size_t n) {
  std::deque<outcome> all;
  while (all.size() < n) all.emplace_back(ex);
  return all;
}

}  // namespace

TEST_CASE("small puts: any number, of any size, into pieces of any size, lie where they belong") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        for (auto digest : {digest_algorithm::xxh3_64, digest_algorithm::none}) {
          auto l = co_await connected({.digest = digest});
          auto memory = blank(40'000);
          std::vector<buffer> pieces;
          for (std::size_t at = 0, n = 1; at < memory.size(); at += n, n = n % 700 + 13)
            pieces.push_back(memory.slice(at, std::min(n, memory.size() - at)));
          auto window = l->there.expose(pieces, window_access::both).value();
          auto from = patterned(memory.size());
          std::uint64_t moved = 0;
          auto v = co_await with(transfer_group{l->near.to(window.ref()), {.in_flight = 70}},
                                 [&](transfer_group& out) -> awaitable<void> {
                                   for (std::size_t at = 0, n = 1; at < from.size(); at += n, n = n % 499 + 7) {
                                     n = std::min(n, from.size() - at);
                                     co_await out.flush(from.slice(at, n), at);
                                   }
                                   co_await out.settled();
                                   moved = out.bytes();
                                 });
          CHECK(!v.error());
          CHECK(moved == from.size());
          CHECK(window.bytes_put() == from.size());
          CHECK(same(memory.bytes(), from.bytes()));
          auto got = outcomes(ex, 100);
          auto back = blank(40'000);
          for (std::size_t i = 0; i < got.size(); ++i)
            async_fetch(l->near.from(window.ref()), i * 400, back.slice(i * 400, 400), {}, got[i].token());
          for (auto& g : got) {
            co_await g.wait();
            CHECK(!g.ec);
            CHECK(g.bytes == 400);
          }
          CHECK(same(back.bytes(), from.bytes()));
          l->near.close();
          co_await l->far.async_closed();
        }
      },
      few());
}

TEST_CASE("small puts: a window that goes takes its own puts alone, and is not written any more") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto l = co_await connected();
        auto kept = blank(10'000), gone = blank(10'000);
        auto stays = l->there.expose({kept}, window_access::put).value();
        auto goes = l->there.expose({gone}, window_access::put).value();
        auto from = patterned(10'000);
        auto in_stays = outcomes(ex, 50), in_goes = outcomes(ex, 50);
        const auto put = [&](window& w, std::deque<outcome>& all, std::size_t i) {
          async_flush(from.slice(i * 200, 200), l->near.to(w.ref()), i * 200, {}, completion_level::visible,
                      all[i].token());
        };
        for (std::size_t i = 0; i < 50; ++i) {
          put(goes, in_goes, i);
          if (i % 5 == 4)
            for (auto j = i - 4; j <= i; ++j) put(stays, in_stays, j);
          if (i == 30) {
            for (int turns = 0; turns < 3; ++turns) co_await asio::post(asio::deferred);
            co_await goes.async_revoke();
            std::ranges::fill(gone.bytes(), std::byte{0x77});
          }
        }
        for (auto* all : {&in_stays, &in_goes})
          for (auto& o : *all) co_await o.wait();
        for (const auto& o : in_stays) CHECK(!o.ec);
        for (std::size_t i = 0; i < 50; ++i)
          CHECK((in_goes[i].ec == errc::stale_reference || (i <= 30 && !in_goes[i].ec)));
        CHECK(same(kept.bytes(), from.bytes()));
        CHECK(std::ranges::all_of(gone.bytes(), [](std::byte b) { return b == std::byte{0x77}; }));
      },
      few());
}

TEST_CASE("small puts: one that is not sent yet is taken back; one that is drains, or is left to itself") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto l = co_await connected();
        auto memory = blank(1000);
        auto window = l->there.expose({memory}, window_access::both).value();
        using type = asio::cancellation_type;
        for (auto how : {type::total, type::partial, type::terminal}) {
          auto from = patterned(1000);
          outcome first(ex), second(ex), third(ex);
          const auto put = [&](outcome& o, std::size_t at) {
            async_flush(from.slice(at, 100), l->near.to(window.ref()), at, {}, completion_level::visible, o.token());
          };
          put(first, 0), put(second, 100), put(third, 200);
          second.signal.emit(how);  // before anything can have been written
          for (auto* o : {&first, &second, &third}) co_await o->wait();
          CHECK(!first.ec);
          CHECK(second.ec == asio::error::operation_aborted);
          CHECK(!third.ec);
          CHECK(same(memory.slice(200, 100).bytes(), from.slice(200, 100).bytes()));
          CHECK(std::ranges::all_of(memory.slice(100, 100).bytes(),
                                    [&](std::byte b) { return b == blank(1).bytes()[0]; }));

          // Sent, and not answered: a total or partial one has its own result, which it is to wait for.
          outcome sent(ex), got(ex);
          put(sent, 300);
          auto into = blank(100);
          async_fetch(l->near.from(window.ref()), 200, into, {}, got.token());
          for (int turns = 0; turns < 4; ++turns) co_await asio::post(asio::deferred);
          sent.signal.emit(how), got.signal.emit(how);
          sent.signal.emit(how), got.signal.emit(how);
          co_await sent.wait();
          co_await got.wait();
          for (auto* o : {&sent, &got}) CHECK((!o->ec || o->ec == asio::error::operation_aborted));
          if (!got.ec) CHECK(same(into.bytes(), from.slice(200, 100).bytes()));
          // What was left to itself keeps its memory until it is over.
          while (into.use_count() > 1) co_await clock::of(ex).async_wait_for(std::chrono::milliseconds(1));
          co_await async_flush(blank(1000), l->near.to(window.ref()), 0);
        }
      },
      few());
}

TEST_CASE("small puts: cancelled and destroyed at every step") {
  auto body = [](asio::any_io_executor) -> awaitable<void> {
    auto l = co_await connected({.credits = 3});
    if (!l) co_return;
    auto memory = blank(2000);
    auto window = l->there.expose({memory}, window_access::both).value();
    auto from = patterned(2000);
    auto v = co_await with(transfer_group{l->near.to(window.ref()), {.in_flight = 4}},
                           [&](transfer_group& out) -> awaitable<void> {
                             for (std::size_t i = 0; i < 10; ++i) co_await out.flush(from.slice(i * 200, 200), i * 200);
                           });
    if (!v.error()) CHECK(same(memory.bytes(), from.bytes()));
    co_await async_fetch(l->near.from(window.ref()), 0, blank(500), {}, asio::deferred);
  };
  cancel_at_every_step(body, {.real = false, .seeds = 1});
  destroy_at_every_step(body, {.real = false, .seeds = 1});
}
