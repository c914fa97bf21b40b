// Every operation that waits, cancelled (by each type) and destroyed after every step it takes: it ends, and what it
// held is there again.
#include <doctest/doctest.h>

#include <optional>

#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/compute.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/device.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/staging_pool.hpp"
#include "cokv/runtime/timeline.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

awaitable<void> sleep_for(duration d) {
  co_await clock::of(co_await asio::this_coro::executor).async_wait_for(d, asio::deferred);
}

void sweep(const co_body& body) {
  run_seed(1, body);
  cancel_at_every_step(body);
  destroy_at_every_step(body);
}

// Says at its end, however it comes, whether something holds.
template <class F>
struct at_end {
  F check;
  ~at_end() { check(); }
};
template <class F>
at_end(F) -> at_end<F>;

}  // namespace

TEST_CASE("every step: a channel loses nothing that was received, and gives nothing twice") {
  sweep([](asio::any_io_executor ex) -> awaitable<void> {
    channel<int> ch(ex, 2);
    int sent = 0, received = 0;
    at_end books{[&] {
      CHECK(received + static_cast<int>(ch.size()) >= sent - 1);  // one on its way to a receiver that was destroyed
      CHECK(received + static_cast<int>(ch.size()) <= sent + 1);  // a send that was cancelled after it was done
    }};
    (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn([&]() -> awaitable<void> {
        for (int i = 0; i < 6; ++i) {
          co_await ch.async_send(i);
          ++sent;
        }
        ch.close();
      });
      for (int expected = 0;; ++expected) {
        result<int> n = co_await ch.async_receive(as_result);
        if (!n) break;
        CHECK(*n == expected);
        ++received;
        co_await sleep_for(1ms);
      }
    });
  });
}

TEST_CASE("every step: a semaphore has all its permits again") {
  sweep([](asio::any_io_executor ex) -> awaitable<void> {
    semaphore slots(ex, 2);
    (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      for (std::size_t n : {1u, 2u, 1u})
        group.spawn([&slots, n]() -> awaitable<void> {
          permit p = co_await slots.async_acquire(n);
          CHECK(p.count() == n);
          co_await sleep_for(1ms);
        });
      co_return;
    });
    CHECK(slots.available() == 2);
  });
}

TEST_CASE("every step: with_deadline gives a value, the deadline or the cancellation, and its task has ended") {
  sweep([](asio::any_io_executor ex) -> awaitable<void> {
    int running = 0;
    auto task = [](int& running, duration d) -> awaitable<int> {
      ++running;
      at_end out{[&running] { --running; }};
      co_await sleep_for(d);
      co_return 7;
    };
    auto quick = co_await with_deadline(task(running, 1ms), 2ms);
    CHECK((quick ? *quick == 7 : quick.error() == asio::error::operation_aborted));
    CHECK(running == 0);
    auto slow = co_await with_deadline(task(running, 9ms), 2ms);
    CHECK((slow.error() == errc::deadline || slow.error() == asio::error::operation_aborted));
    CHECK(running == 0);
  });
}

TEST_CASE("every step: staging buffers go back") {
  sweep([](asio::any_io_executor ex) -> awaitable<void> {
    auto dev = open_device(ex, "sim:h100").value();
    auto pool = staging_pool::make(dev, 4096, 2).value();
    (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      for (int i = 0; i < 4; ++i)
        group.spawn([&pool]() -> awaitable<void> {
          buffer b = co_await pool.async_acquire();
          CHECK(b.size() == 4096);
          co_await sleep_for(1ms);
        });
      co_return;
    });
    co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
    co_await sleep_for(1ms);  // what came back comes by post
    CHECK(pool.available() == 2);
  });
}

TEST_CASE("every step: waits for a stream end, its work doesn't, and its memory stays") {
  sweep([](asio::any_io_executor ex) -> awaitable<void> {
    auto dev = open_device(ex, "sim:h100").value();
    auto s = dev.make_stream({.name = "s", .max_in_flight = 2}).value();
    buffer first = dev.allocate(1 << 20).value();
    for (int i = 0; i < 4; ++i) {
      buffer to = buffer::host(1 << 20);
      co_await s.async_room();
      CHECK(!s.copy(to, first));
    }
    co_await s.record().async_wait();
    co_await s.async_drain();
    co_await on(dev, [&first] { first.data()[0] = std::byte{1}; });
    auto moved = co_await dev.async_allocate(64);
    CHECK(moved.size() == 64);
  });
}

TEST_CASE("every step: a timeline's waits and an arena's functions") {
  sweep([](asio::any_io_executor ex) -> awaitable<void> {
    timeline line(ex);
    arena threads(ex, 2);
    int ran = 0;
    (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      for (std::uint64_t position : {2u, 1u, 3u})
        group.spawn([&line, position]() -> awaitable<void> {
          co_await line.async_wait(position);
          CHECK(line.value() >= position);
        });
      for (std::uint64_t value = 1; value <= 3; ++value) {
        co_await on(threads, [&ran] { ++ran; });
        line.advance(value);
        co_await sleep_for(1ms);
      }
    });
    CHECK(ran <= 3);
  });
}
