// Sums of ranks on their devices, and what ends a group of them, on fake_nccl.
#include <cuda_runtime_api.h>

#include "nccl/group_machine.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("fake_nccl: sums of 1 to 4 ranks, several in a row behind what computes, are right and the same in all") {
  for (std::uint32_t n : {1u, 2u, 3u, 4u})
    for (std::uint64_t seed = 0; seed < 15; ++seed) {
      CAPTURE(n);
      CAPTURE(seed);
      start_group_machine(n, seed, {.max_polls = static_cast<int>(seed % 4)});
      {
        group_machine m(n);
        m.join_all();
        for (auto& r : m.ranks) REQUIRE(r.group);
        CHECK(m.ranks[n - 1].group->rank() == n - 1);
        CHECK(m.ranks[0].group->size() == n);
        constexpr std::size_t rounds = 4;
        std::vector<std::vector<buffer>> given(n), seen(n);
        std::vector<std::vector<ending>> ends(n, std::vector<ending>(rounds));
        // Each round adds up what the one before gave, and a copy of it is kept: nobody waits in between but for NCCL.
        const auto work = [&](std::uint32_t r) -> awaitable<void> {
          auto& mine = m.ranks[r];
          auto x = m.numbers(r, 33, 0);
          for (std::size_t i = 0; i < rounds; ++i) {
            given[r].push_back(m.numbers(r, 33, static_cast<float>(i)));
            if (auto ec = mine.compute.copy(x, given[r].back())) throw boost::system::system_error(ec);
            ends[r][i].ec = co_await mine.group->all_reduce(x);
            ends[r][i].over = true;
            seen[r].push_back(m.numbers(r, 33, 0));
            if (auto ec = mine.compute.copy(seen[r].back(), x)) throw boost::system::system_error(ec);
          }
          CHECK(!(co_await mine.group->all_reduce({})));
          co_await mine.compute.record().async_wait(asio::use_awaitable);
        };
        std::uint32_t done = 0;
        for (std::uint32_t r = 0; r < n; ++r)
          asio::co_spawn(m.ctx, work(r), [&](std::exception_ptr e) {
            ++done;
            CHECK(!e);
          });
        REQUIRE(m.drive([&] { return done == n; }));
        for (std::size_t i = 0; i < rounds; ++i) {
          auto want = m.copy_of(given[0][i]);
          for (std::uint32_t r = 1; r < n; ++r)
            for (std::size_t k = 0; k < want.size(); ++k) want[k] += m.floats(given[r][i])[k];
          for (std::uint32_t r = 0; r < n; ++r) {
            CHECK(!ends[r][i].ec);
            CHECK(m.copy_of(seen[r][i]) == want);
          }
        }
        for (auto& r : m.ranks) CHECK(r.group->useful());
        for (auto& r : m.ranks) r.group.reset();
        CHECK(m.at_rest());
      }
      check_clean();
    }
}

TEST_CASE("fake_nccl: what a group cannot add up is refused, and a place that is none") {
  start_group_machine(2);
  {
    group_machine m(2);
    m.join_all();
    auto bytes = m.ranks[0].on.allocate(7).value(), near = m.ranks[0].on.allocate(8, memory_kind::pinned).value();
    ending odd, host;
    m.sum(0, bytes, odd);
    m.sum(0, near, host);
    CHECK(m.drive([&] { return odd.over && host.over; }));
    CHECK(odd.ec == errc::invalid_argument);
    CHECK(host.ec == errc::wrong_device);
    CHECK(m.ranks[0].group->useful());
    const auto id = m.id();
    auto& r = m.ranks[0];
    const auto refused = [&](device where, nccl_place place) {
      return m.get(nccl_group::join(where, r.compute, std::move(place), {})).error();
    };
    CHECK(refused(r.on, {0, 2, {}}) == errc::invalid_argument);
    CHECK(refused(r.on, {2, 2, id}) == errc::invalid_argument);
    const auto cpu = open_device(m.ctx.get_executor(), "cpu").value();
    CHECK(refused(cpu, {0, 2, id}) == errc::wrong_device);
    CHECK(m.get(nccl_gpu_of(cpu)).error() == errc::wrong_device);
    CHECK(m.get(make_nccl_group_id(cpu)).error() == errc::wrong_device);
    const auto gpus = std::array{m.get(nccl_gpu_of(m.ranks[0].on)).value(), m.get(nccl_gpu_of(m.ranks[1].on)).value()};
    CHECK(gpus[0].version == NCCL_VERSION_CODE);
    CHECK(gpus[0].uuid != gpus[1].uuid);
    for (auto& one : m.ranks) one.group.reset();
    CHECK(m.at_rest());
  }
  check_clean();
}

TEST_CASE(
    "fake_nccl: two ranks on one GPU, ranks of other ids and one that does not come are told, and nothing is left") {
  enum class what { one_gpu, other_ids, absent, cancelled };
  for (auto cause : {what::one_gpu, what::other_ids, what::absent, what::cancelled}) {
    CAPTURE(static_cast<int>(cause));
    start_group_machine(2, 3, {.max_polls = 2});
    {
      group_machine m(2);
      if (cause == what::one_gpu) m.ranks[1] = m.made(0);
      const nccl_group_options soon{.set_up = std::chrono::milliseconds(5)};
      const auto id = m.id();
      asio::cancellation_signal stop;
      ending cancelled;
      if (cause == what::cancelled) {
        auto& r = m.ranks[0];
        asio::co_spawn(
            m.ctx, nccl_group::join(r.on, r.compute, {0, 2, id}, {}),
            asio::bind_cancellation_slot(stop.slot(), [&](std::exception_ptr, result<std::shared_ptr<nccl_group>> g) {
              cancelled.over = true;
              cancelled.ec = g.error();
            }));
        REQUIRE(m.drive([] { return fake_nccl::live_communicators() == 1; }));
        for (int i = 0; i < 50; ++i) m.round();
        stop.emit(asio::cancellation_type::terminal);
        CHECK(m.drive([&] { return cancelled.over; }));
        CHECK(cancelled.ec == asio::error::operation_aborted);
      } else {
        m.join(0, id, cause == what::one_gpu ? nccl_group_options() : soon);
        if (cause != what::absent) m.join(1, cause == what::other_ids ? m.id() : id, soon);
        CHECK(m.drive([&] { return m.ranks[0].over && (m.ranks[1].over || cause == what::absent); }));
        if (cause == what::one_gpu)
          CHECK(m.ranks[0].why.category().name() == std::string("nccl"));
        else
          CHECK(m.ranks[0].why == errc::deadline);
      }
      CHECK(m.at_rest());
      CHECK(fake_nccl::aborted_communicators() == (cause == what::absent || cause == what::cancelled ? 1 : 2));
    }
    check_clean();
  }
}

TEST_CASE(
    "fake_nccl: an error, a rank's abort, silence, other sizes and a cancelled wait end a group, and nothing of it "
    "runs on") {
  enum class what { error, aborted, silence, sizes, cancelled, dropped };
  for (auto cause : {what::error, what::aborted, what::silence, what::sizes, what::cancelled, what::dropped})
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      CAPTURE(static_cast<int>(cause));
      CAPTURE(seed);
      start_group_machine(3, seed, {.max_polls = static_cast<int>(seed % 3), .peer_notices = cause != what::silence});
      {
        group_machine m(3);
        m.join_all(cause == what::silence ? nccl_group_options{.stall = std::chrono::milliseconds(2)}
                                          : nccl_group_options());
        for (auto& r : m.ranks) REQUIRE(r.group);
        auto x = m.numbers(0, 20, 1), y = m.numbers(1, 20, 1), z = m.numbers(2, 21, 1);
        ending a, b, c;
        asio::cancellation_signal stop;
        m.sum(0, x, a, stop.slot());
        if (cause != what::cancelled) m.sum(1, y, b);
        for (std::uint64_t i = 0; i < 4 * seed; ++i) m.round();
        if (cause == what::error) fake_nccl::raise(0, ncclSystemError);
        if (cause == what::aborted) m.ranks[2].group->abort(errc::unavailable);
        if (cause == what::sizes) m.sum(2, z, c);
        if (cause == what::cancelled) stop.emit(asio::cancellation_type::partial);
        const auto group = m.ranks[0].group;
        if (cause == what::dropped) group->abort(errc::closed);
        if (cause == what::cancelled) {
          // It may have been there already: then nothing was given up.
          CHECK(m.drive([&] { return a.over; }));
          if (!a.ec) CHECK(group->useful());
          if (a.ec) CHECK(a.ec == asio::error::operation_aborted);
          group->abort(errc::closed);
        }
        bool over = false;
        asio::co_spawn(m.ctx, group->closed(), [&](std::exception_ptr e) {
          over = true;
          CHECK(!e);
        });
        CHECK(m.drive([&] { return over && a.over; }));
        CHECK(!group->useful());
        CHECK(!fake_cuda::would_use(x.data(), x.size()));
        std::memset(x.data(), 7, x.size());
        for (int i = 0; i < 200; ++i) m.round();
        CHECK(all_bytes_are(x, 7));
        ending again;
        m.sum(0, x, again);
        CHECK(m.drive([&] { return again.over; }));
        if (cause == what::error) CHECK(again.ec.message() == "the system failed");
        if (cause == what::aborted) CHECK(again.ec.message() == "the peer is gone");
        if (cause == what::silence) CHECK(again.ec == errc::deadline);
        if (cause == what::sizes) CHECK(again.ec.category().name() == std::string("nccl"));
        if (cause == what::dropped) CHECK(again.ec == errc::closed);
        for (auto& r : m.ranks) r.group.reset();
        CHECK(m.at_rest());
        CHECK(m.drive([&] { return (b.over || cause == what::cancelled) && (c.over || cause != what::sizes); }));
        for (auto& r : m.ranks)  // the streams go on
          CHECK(m.get([](stream s) -> awaitable<error_code> {
            co_return (co_await s.record().async_wait(as_result)).error();
          }(r.compute)) == error_code());
      }
      check_clean();
    }
}

TEST_CASE("fake_nccl: a stream without room takes sums as it gets some") {
  start_group_machine(2, 5, {.max_polls = 1});
  {
    group_machine m(2);
    for (auto& r : m.ranks) r.compute = r.on.make_stream({.name = "compute", .max_in_flight = 3}).value();
    m.join_all();
    int done = 0;
    const auto work = [&](std::uint32_t r) -> awaitable<void> {
      const auto x = m.numbers(r, 4, 1);
      for (int i = 0; i < 20; ++i) CHECK(!(co_await m.ranks[r].group->all_reduce(x)));
      co_await m.ranks[r].compute.record().async_wait(asio::use_awaitable);
    };
    for (std::uint32_t r = 0; r < 2; ++r)
      asio::co_spawn(m.ctx, work(r), [&](std::exception_ptr e) {
        ++done;
        CHECK(!e);
      });
    CHECK(m.drive([&] { return done == 2; }));
    for (auto& r : m.ranks) r.group.reset();
    CHECK(m.at_rest());
  }
  check_clean();
}

TEST_CASE("fake_nccl: sums on devices that go on by themselves, under the loop") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    fake_cuda::reset({.mode = fake_cuda::mode::threaded, .devices = 3, .seed = seed, .max_delay = 3});
    fake_nccl::reset({.max_polls = 3});
    {
      group_machine m(3);
      int done = 0;
      std::optional<std::vector<std::byte>> id;
      const auto work = [&](std::uint32_t r) -> awaitable<void> {
        auto& mine = m.ranks[r];
        mine.group = (co_await nccl_group::join(mine.on, mine.compute, {r, 3, *id}, {})).value();
        for (int i = 0; i < 20; ++i) {
          const auto x = m.numbers(r, 9, static_cast<float>(i));
          CHECK(!(co_await mine.group->all_reduce(x)));
          co_await mine.compute.record().async_wait(asio::use_awaitable);
          CHECK(m.floats(x)[0] == static_cast<float>(3 * i));
        }
        ++done;
      };
      asio::co_spawn(
          m.ctx,
          [&]() -> awaitable<void> {
            id = (co_await make_nccl_group_id(m.ranks[0].on)).value();
            for (std::uint32_t r = 0; r < 3; ++r)
              asio::co_spawn(m.ctx, work(r), [](std::exception_ptr e) { CHECK(!e); });
          },
          asio::detached);
      run(m.ctx);
      CHECK(done == 3);
      for (auto& r : m.ranks) r.group.reset();
      m.ctx.restart();
      run(m.ctx);
    }
    check_clean();
  }
}
