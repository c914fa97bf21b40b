#include "cokv/kvstream/replicator.hpp"

#include <doctest/doctest.h>

#include "cokv/kvstream/frame.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "kvstream/replicator/ring_worker.hpp"
#include "kvstream/transfers.hpp"
#include "replicator/replica_message.hpp"
#include "support/operation_matrix.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

struct acknowledgement {
  std::uint64_t microbatch;
  std::uint32_t steps;
  std::uint64_t epoch;
};

// Worker 1 and its successor, worker 2, with a link between them.
struct two_workers {
  explicit two_workers(asio::any_io_executor ex, std::uint32_t max_ahead = 1, std::uint64_t limit = 1 << 20)
      : here(ex),
        there(ex),
        mine(here, 1,
             {.max_ahead = max_ahead,
              .acknowledged = [this](auto m, auto steps, auto epoch) { heard.push_back({m, steps, epoch}); }}),
        holder(there, 2, {.limit = limit}) {}

  awaitable<void> connect() {
    auto door = link_listener::listen(there, "tcp://localhost:0").value();
    (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn([&]() -> awaitable<void> { far = co_await door.async_accept(); });
      near = co_await async_connect(here, door.url());
    });
  }
  void compute(std::uint64_t m, std::uint32_t attempt = 0) {
    const auto n = mine.steps(m);
    kv.write(1, m, n, attempt);
    mine.computed(m, kv.step(m, n));
  }
  void follow(std::uint64_t epoch) {
    mine.follow(epoch, 2);
    holder.follow(epoch, std::nullopt);
  }
  // Until the successor has so many steps.
  awaitable<void> kept(std::uint64_t m, std::uint32_t steps) {
    while (mine.acknowledged(m) < steps) co_await clock::of(here.get_executor()).async_wait_for(1ms);
  }

  window_table here, there;
  std::vector<acknowledgement> heard;
  replicator mine, holder;
  peer_link near, far;
  worker_kv kv{4};
};

// Runs both sides while the body does.
template <class Body>
awaitable<error_code> exchange(two_workers& w, Body body) {
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<error_code> { co_return co_await w.holder.keep(w.far); });
    group.spawn([&]() -> awaitable<error_code> { co_return co_await w.mine.send(w.near); });
    co_await body(group);
    group.cancel();
  });
  co_return v.error();
}

co_options few(std::size_t seeds = 30) {
  co_options o;
  o.seeds = seeds;
  return o;
}

awaitable<void> whole_exchange(asio::any_io_executor ex) {
  two_workers w(ex);
  co_await w.connect();
  if (!w.near || !w.far) co_return;
  w.follow(1);
  w.mine.open(7, replicated_bytes(most_steps));
  (void)co_await exchange(w, [&](task_group&) -> awaitable<void> {
    for (int i = 0; i < 3; ++i) {
      co_await w.mine.async_may_compute(7);
      w.compute(7);
    }
    co_await w.kept(7, 3);
  });
  worker_kv fresh(1);
  (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<error_code> { co_return co_await w.holder.keep(w.far); });
    co_await async_restore(w.near, {1, 1, 7, fresh.steps(7, 2)});
    CHECK(fresh.wrong(1, 7, 1, 0) == 0);
    group.cancel();
  });
  w.near.close();
  (void)co_await w.far.async_closed();
}

}  // namespace

TEST_CASE("replicator: each step is kept and acknowledged before another may be computed, and comes back as it was") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        two_workers w(ex);
        co_await w.connect();
        w.follow(1);
        w.mine.open(7, replicated_bytes(most_steps));
        w.mine.open(8, replicated_bytes(most_steps));
        worker_kv fresh(4);
        CHECK(!co_await exchange(w, [&](task_group&) -> awaitable<void> {
          for (std::uint32_t n = 0; n < most_steps; ++n)
            for (std::uint64_t m : {7, 8}) {
              CHECK((co_await w.mine.async_may_compute(m, as_result)).has_value());
              CHECK(w.mine.acknowledged(m) == n);
              w.compute(m);
              CHECK(!w.mine.may_compute(m));
            }
          co_await w.kept(7, most_steps);
          co_await w.kept(8, most_steps);
        }));
        CHECK(w.holder.copies() == 2);
        CHECK(w.holder.bytes_kept() == 2 * replicated_bytes(most_steps));
        std::map<std::uint64_t, std::uint32_t> last;
        for (const auto& a : w.heard) {
          CHECK(a.steps == last[a.microbatch] + (a.steps > 0));
          CHECK(a.epoch == 1);
          last[a.microbatch] = a.steps;
        }
        // Worker 1 is lost; whoever takes its place gets what is kept over a link of its own.
        w.near.close();
        (void)co_await w.far.async_closed();
        co_await w.connect();
        w.holder.follow(2, std::nullopt);
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn([&]() -> awaitable<error_code> { co_return co_await w.holder.keep(w.far); });
          for (std::uint64_t m : {7, 8}) {
            auto got = co_await async_restore(w.near, {2, 1, m, fresh.steps(m, 10)}, as_result);
            CHECK(got.has_value());
            if (got) CHECK(got->bytes == replicated_bytes(10));
            for (std::uint32_t n = 0; n < 10; ++n) CHECK(fresh.wrong(1, m, n, 0) == 0);
            CHECK(fresh.wrong(1, m, 10, 0) > 0);
          }
          auto ask = [&](std::uint64_t epoch, std::uint64_t lost, std::uint64_t m,
                         std::vector<replicated_step> steps) -> awaitable<error_code> {
            auto got = co_await async_restore(w.near, {epoch, lost, m, std::move(steps)}, as_result);
            co_return got ? error_code() : got.error();
          };
          CHECK(co_await ask(1, 1, 7, fresh.steps(7, 3)) == errc::stale_reference);
          CHECK(co_await ask(2, 5, 7, fresh.steps(7, 3)) == errc::not_found);
          CHECK(co_await ask(2, 1, 9, fresh.steps(7, 3)) == errc::not_found);
          CHECK(co_await ask(2, 1, 7, {}) == errc::invalid_argument);
          CHECK(co_await ask(2, 1, 7, {fresh.step(7, 1)}) == errc::out_of_range);  // the first is the prompt
          group.cancel();
        });
        CHECK(!v.error());
        w.holder.retain([](auto, auto) { return false; });
        w.near.close();
        (void)co_await w.far.async_closed();
        CHECK(w.holder.bytes_kept() == 0);
        CHECK(w.there.size() == 0);
      },
      few());
}

TEST_CASE("replicator: a step may be max_ahead ahead, and alone a worker is not held up") {
  sim_context context(1);
  two_workers w(context.get_executor(), 3);
  w.mine.open(1, replicated_bytes(most_steps));
  for (int i = 0; i < 5; ++i) w.compute(1);  // nobody to copy to
  w.mine.recovered(1, 2, 0);
  w.mine.follow(1, 2);
  CHECK(w.mine.steps(1) == 2);
  CHECK(!w.mine.all_kept(1));
  w.compute(1);
  CHECK(!w.mine.may_compute(1));
  CHECK_THROWS_AS(w.compute(1), std::invalid_argument);
  CHECK_THROWS_AS(w.mine.open(1, 10), std::invalid_argument);
  CHECK_THROWS_AS(w.mine.open(2, 0), std::invalid_argument);
  CHECK_THROWS_AS(w.mine.recovered(1, 4, 0), std::invalid_argument);
  CHECK_THROWS_AS((void)w.mine.may_compute(9), std::invalid_argument);
  w.mine.follow(2, std::nullopt);
  CHECK(w.mine.may_compute(1));
  CHECK(w.mine.all_kept(1));
  w.mine.close(1);
  w.mine.open(3, 10);
  CHECK_THROWS_AS(w.mine.computed(3, w.kv.step(1, 0)), std::invalid_argument);  // more than it was opened for
  CHECK_THROWS_AS(replicator(w.here, 1, {.max_ahead = 0}), config_error);
}

TEST_CASE("replicator: what a holder has no room for is that microbatch's error, and the others go on") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        two_workers w(ex, 1, 2 * replicated_bytes(most_steps));
        co_await w.connect();
        w.follow(1);
        for (std::uint64_t m : {1, 2, 3}) w.mine.open(m, replicated_bytes(most_steps));
        CHECK(!co_await exchange(w, [&](task_group&) -> awaitable<void> {
          std::size_t full = 0;
          for (std::uint64_t m : {1, 2, 3}) w.compute(m);
          for (std::uint64_t m : {1, 2, 3}) {
            auto may = co_await w.mine.async_may_compute(m, as_result);
            if (!may) {
              CHECK(may.error() == errc::store_full);
              ++full;
            }
          }
          CHECK(full == 1);
          CHECK(w.holder.bytes_kept() == 2 * replicated_bytes(most_steps));
          // One that is over makes room for another.
          w.mine.close(1);
          w.mine.close(2);
          while (w.holder.bytes_kept() > replicated_bytes(most_steps)) co_await clock::of(ex).async_wait_for(1ms);
          w.mine.open(4, replicated_bytes(most_steps));
          w.compute(4);
          CHECK((co_await w.mine.async_may_compute(4, as_result)).has_value());
          auto none = co_await w.mine.async_may_compute(1, as_result);
          CHECK(none.error() == errc::closed);
        }));
        w.near.close();
        (void)co_await w.far.async_closed();
      },
      few());
}

TEST_CASE("replicator: a step whose event failed, or whose blocks were freed, is the microbatch's own error") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        two_workers w(ex);
        co_await w.connect();
        w.follow(1);
        w.mine.open(1, replicated_bytes(most_steps));
        w.mine.open(2, replicated_bytes(most_steps));
        auto compute = any_device(ex).make_stream().value();
        (void)compute.launch("fails", []() -> error_code { return errc::device_failed; });
        CHECK(!co_await exchange(w, [&](task_group&) -> awaitable<void> {
          w.mine.computed(1, w.kv.step(1, 0), compute.record());
          CHECK((co_await w.mine.async_may_compute(1, as_result)).error() == errc::device_failed);
          w.mine.computed(2, w.kv.step(2, 0));
          w.kv.leases(2).clear();
          CHECK((co_await w.mine.async_may_compute(2, as_result)).error() == errc::stale_reference);
          // The holder is told of their end all the same.
          CHECK(w.holder.copies() == 2);
          w.mine.close(1);
          w.mine.close(2);
          while (w.holder.copies() > 0) co_await clock::of(ex).async_wait_for(1ms);
        }));
        w.near.close();
        (void)co_await w.far.async_closed();
      },
      few());
}

TEST_CASE("replicator: in a new epoch what is computed again replaces what the holder had of it") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        two_workers w(ex, 4);
        co_await w.connect();
        w.follow(1);
        w.mine.open(1, replicated_bytes(most_steps));
        CHECK(!co_await exchange(w, [&](task_group&) -> awaitable<void> {
          for (int i = 0; i < 4; ++i) w.compute(1);
          co_await w.kept(1, 4);
        }));
        w.follow(2);
        w.mine.recovered(1, 2, 2);
        CHECK(!co_await exchange(w, [&](task_group&) -> awaitable<void> {
          for (int i = 0; i < 3; ++i) w.compute(1, 1);
          co_await w.kept(1, 5);
        }));
        worker_kv fresh(2);
        CHECK(!co_await exchange(w, [&](task_group&) -> awaitable<void> {
          w.follow(3);  // send() ends with its epoch
          auto got = co_await async_restore(w.near, {3, 1, 1, fresh.steps(1, 5)}, as_result);
          CHECK(got.has_value());
        }));
        for (std::uint32_t n = 0; n < 5; ++n) CHECK(fresh.wrong(1, 1, n, n < 2 ? 0 : 1) == 0);
        w.near.close();
        (void)co_await w.far.async_closed();
      },
      few());
}

TEST_CASE("replicator: what a holder takes is what was kept, with its tags, and nobody writes it any more") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        two_workers w(ex);
        co_await w.connect();
        w.follow(1);
        w.mine.open(7, replicated_bytes(most_steps));
        const auto tag = [](std::uint32_t n) {
          id256 t;
          t.bytes.fill(static_cast<std::byte>(n + 1));
          return t;
        };
        const auto compute = [&] {
          const auto n = w.mine.steps(7);
          w.kv.write(1, 7, n, 0);
          w.mine.computed(7, w.kv.step(7, n), {}, tag(n));
        };
        CHECK((co_await w.holder.take(1, 7)).error() == errc::not_found);
        (void)co_await exchange(w, [&](task_group&) -> awaitable<void> {
          for (int i = 0; i < 3; ++i) {
            CHECK((co_await w.mine.async_may_compute(7, as_result)).has_value());
            compute();
          }
          co_await w.kept(7, 3);
          const auto copy = co_await w.holder.take(1, 7);
          REQUIRE(copy.has_value());
          REQUIRE(copy->steps.size() == 3);
          std::uint64_t begin = 0, bad = 0;
          for (std::uint32_t n = 0; n < 3; ++n) {
            CHECK(copy->steps[n].tag == tag(n));
            for (auto at = begin; at < copy->steps[n].end; ++at)
              bad += copy->memory.bytes()[at] != kv_truth(1, 7, n, 0, at - begin);
            begin = copy->steps[n].end;
          }
          CHECK(begin == replicated_bytes(3));
          CHECK(bad == 0);
          CHECK(w.holder.copies() == 0);
          CHECK((co_await w.holder.take(1, 7)).error() == errc::not_found);
          // The owner does not know yet: what it puts now reaches nothing.
          const std::vector<std::byte> before(copy->memory.bytes().begin(), copy->memory.bytes().end());
          compute();
          co_await clock::of(ex).async_wait_for(50ms, asio::deferred);
          CHECK(std::ranges::equal(before, copy->memory.bytes()));
          CHECK(w.mine.acknowledged(7) == 3);
        });
        CHECK(w.holder.bytes_kept() == 0);
        w.near.close();
        (void)co_await w.far.async_closed();
      },
      few());
}

TEST_CASE("replicator: a copy that nobody sends to any more is forgotten in time, and no other") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        two_workers w(ex, 4);
        co_await w.connect();
        w.follow(1);
        w.mine.open(1, replicated_bytes(most_steps));
        w.mine.open(2, replicated_bytes(most_steps));
        CHECK(!co_await exchange(w, [&](task_group&) -> awaitable<void> {
          w.compute(1);
          w.compute(2);
          co_await w.kept(1, 1);
          co_await w.kept(2, 1);
          for (int i = 0; i < 3; ++i) {
            w.holder.forget_unfed(0ms);
            co_await clock::of(ex).async_wait_for(1ms);
          }
          CHECK(w.holder.copies() == 2);
        }));
        w.holder.forget_unfed(5ms);
        CHECK(w.holder.copies() == 2);
        w.mine.close(2);  // which the holder does not hear
        CHECK(!co_await exchange(w, [&](task_group&) -> awaitable<void> {
          w.compute(1);
          co_await w.kept(1, 2);
          co_await clock::of(ex).async_wait_for(10ms);
          w.holder.forget_unfed(5ms);
          CHECK(w.holder.copies() == 1);
          CHECK((co_await w.holder.take(1, 1)).has_value());
        }));
        w.near.close();
        (void)co_await w.far.async_closed();
      },
      few());
}

TEST_CASE("replicator: a sender of an older epoch is refused, and changes nothing") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        two_workers w(ex);
        co_await w.connect();
        w.mine.follow(4, 2);
        w.holder.follow(5, std::nullopt);
        w.mine.open(1, replicated_bytes(most_steps));
        w.compute(1);
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn([&]() -> awaitable<error_code> { co_return co_await w.holder.keep(w.far); });
          CHECK(co_await w.mine.send(w.near) == errc::stale_reference);
          group.cancel();
        });
        CHECK(!v.error());
        CHECK(w.holder.copies() == 0);
        CHECK(w.holder.bytes_kept() == 0);
        w.near.close();
        (void)co_await w.far.async_closed();
      },
      few());
}

TEST_CASE("replicator: a peer that says what is not true is cut off") {
  using cokv::detail::replica_message, cokv::detail::replica_type;
  const auto bytes = replicated_bytes(4);
  const replica_message open{.type = replica_type::open, .epoch = 1, .owner = 1, .microbatch = 1, .bytes = bytes};
  const auto after_open = [&](replica_message m) { return std::vector<link_message>{encode(open), encode(m)}; };
  const auto stored = [&](std::uint32_t steps, std::uint64_t end) {
    return replica_message{
        .type = replica_type::stored, .steps = steps, .epoch = 1, .owner = 1, .microbatch = 1, .bytes = end};
  };
  std::vector<std::vector<link_message>> lies{
      {link_message(3)},
      {link_message(5000)},
      {encode(replica_message{.type = replica_type::open, .epoch = 1, .owner = 1, .microbatch = 1})},
      {encode(replica_message{.type = replica_type::room, .epoch = 1, .owner = 1, .microbatch = 1})},
      after_open(stored(1, 100)),        // nothing was put
      after_open(stored(2, 1)),          // not the next step
      after_open(stored(1, 0)),          // an empty one
      after_open(stored(1, bytes + 1)),  // more than there is room for
      after_open(stored(1, ~std::uint64_t{0})),
  };
  for (const auto& lie : lies)
    co_test(
        [&](asio::any_io_executor ex) -> awaitable<void> {
          two_workers w(ex);
          co_await w.connect();
          w.holder.follow(1, std::nullopt);
          auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
            group.spawn([&]() -> awaitable<void> { CHECK(co_await w.holder.keep(w.far) == errc::protocol); });
            for (const auto& m : lie) CHECK((co_await w.near.async_send(m, as_result)).has_value());
            (void)co_await w.near.async_closed();
            group.cancel();
          });
          CHECK(!v.error());
        },
        few(5));
}

TEST_CASE("replicator: async_may_compute, async_restore: tokens, executors, cancellation") {
  check_operation("async_may_compute", [](sim_context& ctx) {
    auto w = std::make_shared<two_workers>(ctx.get_executor());
    w->mine.follow(1, 2);
    w->mine.open(1, replicated_bytes(most_steps));
    w->compute(1);
    return matrix_row([w](auto&& token) { return w->mine.async_may_compute(1, std::forward<decltype(token)>(token)); },
                      [w] { w->mine.follow(2, std::nullopt); });
  });
  check_operation("async_restore", [](sim_context& ctx) {
    auto w = std::make_shared<two_workers>(ctx.get_executor());
    bool filled = false;
    asio::co_spawn(
        ctx.get_executor(),
        [](std::shared_ptr<two_workers> w) -> awaitable<void> {
          co_await w->connect();
          w->follow(1);
          w->mine.open(1, replicated_bytes(most_steps));
          (void)co_await exchange(*w, [&](task_group&) -> awaitable<void> {
            w->compute(1);
            co_await w->kept(1, 1);
          });
          asio::co_spawn(w->here.get_executor(), w->holder.keep(w->far), asio::detached);
          clock::of(w->here.get_executor()).async_wait_for(1s, [w](error_code) { w->near.close(); });
        }(w),
        [&](std::exception_ptr e) { filled = !e; });
    while (!filled && ctx.step()) {
    }
    return matrix_row(
        [w](auto&& token) {
          return async_restore(w->near, {1, 1, 1, w->kv.steps(1, 1)}, std::forward<decltype(token)>(token));
        },
        [w] {});
  });
}

TEST_CASE("replicator: cancelled or destroyed at any step, everything ends") {
  cancel_at_every_step(whole_exchange, few());
  destroy_at_every_step(whole_exchange, few());
}
