// What a pair of ranks moves, on fake_nccl.
#include "cokv/runtime/detail/kernels_wait.hpp"
#include "cokv/runtime/with.hpp"
#include "nccl/two_devices.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("fake_nccl: pieces go both ways at once, right on every seed") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    start_machine(seed, {.max_polls = static_cast<int>(seed % 4)});
    {
      two_devices m;
      auto pairs = m.pairs();
      constexpr int transfers = 5;
      std::vector<std::array<std::vector<buffer>, 2>> from, to;
      std::vector<std::array<ending, 4>> ends(transfers);
      for (int i = 0; i < transfers; ++i) {
        auto& f = from.emplace_back();
        auto& t = to.emplace_back();
        for (int rank = 0; rank < 2; ++rank)
          for (int k = 0; k <= i; ++k) {
            const auto n = static_cast<std::size_t>(1 + 37 * k + 5 * i);
            f[static_cast<std::size_t>(rank)].push_back(m.filled(rank, n, 16 * i + 2 * k + rank));
            t[static_cast<std::size_t>(rank)].push_back(m.filled(rank, n, 0));
          }
      }
      for (std::size_t i = 0; i < transfers; ++i)
        for (std::size_t rank = 0; rank < 2; ++rank) {
          pairs[rank].async_send(from[i][rank], {}, {}, ends[i][rank].token());
          pairs[rank].async_receive(to[i][rank], ends[i][2 + rank].token());
        }
      CHECK(m.drive(
          [&] { return std::ranges::all_of(ends, [](auto& e) { return std::ranges::all_of(e, &ending::over); }); }));
      for (std::size_t i = 0; i < transfers; ++i)
        for (std::size_t rank = 0; rank < 2; ++rank) {
          CHECK(!ends[i][rank].ec);
          CHECK(!ends[i][2 + rank].ec);
          for (std::size_t k = 0; k < to[i][rank].size(); ++k)
            CHECK(all_bytes_are(to[i][rank][k], static_cast<int>(16 * i + 2 * k + 1 - rank)));
        }
      std::array<ending, 2> closed;
      for (std::size_t rank = 0; rank < 2; ++rank) pairs[rank].async_close(closed[rank].token());
      CHECK(m.drive([&] { return closed[0].over && closed[1].over; }));
      CHECK(!closed[0].ec);
      CHECK(!closed[1].ec);
      CHECK(fake_nccl::live_communicators() == 0);
      CHECK(fake_nccl::aborted_communicators() == 0);
    }
    check_clean();
  }
}

TEST_CASE("fake_nccl: a layer that is not computed yet holds up neither the other direction nor the other layers") {
  start_machine();
  {
    two_devices m;
    auto pairs = m.pairs();
    auto compute = m.on[0].make_stream().value();
    auto late = m.filled(0, 64, 1), soon = m.filled(0, 64, 2), back = m.filled(1, 64, 3);
    auto first = m.filled(1, 64, 0), second = m.filled(1, 64, 0), here = m.filled(0, 64, 0);
    // An event of the device that comes when the test says so.
    auto core = std::make_shared<cokv::detail::timeline_core>(m.ctx.get_executor());
    std::vector<int> order;
    ending a, b, c, d, e, f;
    pairs[0].async_send(
        {late}, event(core, 1), [&](std::uint64_t n) { order.push_back(10 + static_cast<int>(n)); }, a.token());
    pairs[0].async_send({soon}, {}, [&](std::uint64_t n) { order.push_back(20 + static_cast<int>(n)); }, b.token());
    pairs[1].async_receive({first}, c.token());
    pairs[1].async_send({back}, {}, {}, d.token());
    pairs[0].async_receive({here}, e.token());
    CHECK(m.drive([&] { return b.over && c.over && d.over && e.over; }));
    CHECK(!a.over);
    CHECK(all_bytes_are(first, 2));
    CHECK(all_bytes_are(here, 3));
    core->advance(1);
    pairs[1].async_receive({second}, f.token());
    CHECK(m.drive([&] { return a.over && f.over; }));
    CHECK(all_bytes_are(second, 1));
    CHECK(order == std::vector{21, 12});
    // One that fails concerns nobody else.
    core->fail(2, errc::device_failed);
    ending failed, fine, there;
    pairs[0].async_send({late}, event(core, 2), {}, failed.token());
    pairs[0].async_send({soon}, {}, {}, fine.token());
    pairs[1].async_receive({second}, there.token());
    CHECK(m.drive([&] { return failed.over && fine.over && there.over; }));
    CHECK(failed.ec == errc::device_failed);
    CHECK(!fine.ec);
    CHECK(all_bytes_are(second, 2));
  }
  check_clean();
}

TEST_CASE("fake_nccl: more than 2 GiB in one piece, nothing at all, and memory that no device has") {
  start_machine(0, {.moves = false});
  {
    two_devices m;
    auto pairs = m.pairs();
    constexpr std::size_t large = (std::size_t{5} << 30) + 3;
    auto nowhere = [](std::uintptr_t at) { return reinterpret_cast<void*>(at << 36); };  // not touched
    auto from = buffer::adopt(nowhere(1), large, memory_kind::device, {}, false);
    auto to = buffer::adopt(nowhere(2), large, memory_kind::device, {}, false);
    const auto before = fake_nccl::bytes_sent();
    ending sent, received, nothing, host;
    pairs[0].async_send({from}, {}, {}, sent.token());
    pairs[1].async_receive({to}, received.token());
    CHECK(m.drive([&] { return sent.over && received.over; }));
    CHECK(!sent.ec);
    CHECK(!received.ec);
    CHECK(fake_nccl::bytes_sent() - before == large);
    pairs[0].async_send({buffer()}, {}, {}, nothing.token());
    pairs[0].async_send({buffer::host(64)}, {}, {}, host.token());
    CHECK(m.drive([&] { return nothing.over && host.over; }));
    CHECK(!nothing.ec);
    CHECK(host.ec == errc::wrong_device);
    CHECK(fake_nccl::bytes_sent() - before == large);
  }
  check_clean();
}

TEST_CASE("fake_nccl: hundreds of transfers wait for room and all come through") {
  start_machine(3);
  {
    two_devices m;
    auto pairs = m.pairs();
    constexpr std::size_t count = 600;
    auto from = m.filled(0, 8, 5), to = m.filled(1, 8, 0);
    std::vector<ending> sent(count), received(count);
    for (std::size_t i = 0; i < count; ++i) {
      pairs[0].async_send({from}, {}, {}, sent[i].token());
      pairs[1].async_receive({to}, received[i].token());
    }
    CHECK(m.drive(
        [&] { return std::ranges::all_of(sent, &ending::over) && std::ranges::all_of(received, &ending::over); }));
    CHECK(std::ranges::none_of(sent, [](auto& e) { return bool(e.ec); }));
    CHECK(std::ranges::none_of(received, [](auto& e) { return bool(e.ec); }));
    CHECK(all_bytes_are(to, 5));
  }
  check_clean();
}

TEST_CASE("fake_nccl: on a device that goes on by itself, under the loop") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    fake_cuda::reset({.mode = fake_cuda::mode::threaded, .devices = 2, .seed = seed, .max_delay = 3});
    fake_nccl::reset({.max_polls = 3});
    {
      two_devices m;
      int arrived = 0;
      auto side = [&](int rank, cokv::detail::nccl_id id) -> awaitable<void> {
        auto pair = (co_await m.connect(id, rank)).value();
        for (int i = 0; i < 20; ++i) {
          auto mine = m.filled(rank, 100, i), theirs = m.filled(rank, 100, 99);
          auto verdict = co_await with(task_group{}, [&](task_group& group) {
            group.spawn(pair.async_send({mine}, {}, {}, asio::deferred));
            group.spawn(pair.async_receive({theirs}, asio::deferred));
          });
          CHECK(verdict);
          CHECK(all_bytes_are(theirs, i));
          ++arrived;
        }
        CHECK((co_await pair.async_close(as_result)));
      };
      std::optional<result<cokv::detail::nccl_id>> id;
      asio::co_spawn(m.ctx, cokv::detail::make_nccl_id(fake_nccl::table(), m.on[0]),
                     [&](std::exception_ptr, result<cokv::detail::nccl_id> made) { id = std::move(made); });
      run(m.ctx);
      for (int rank = 0; rank < 2; ++rank) asio::co_spawn(m.ctx, side(rank, id->value()), asio::detached);
      m.ctx.restart();
      run(m.ctx);
      CHECK(arrived == 40);
    }
    check_clean();
  }
}

// As on a GPU whose kernels wait for the other rank's, which is to be enqueued by this very loop.
TEST_CASE(
    "fake_nccl: memory that is let go of while there are ranks holds no loop up, and is given back all the same") {
  start_machine();
  {
    two_devices m;
    auto pairs = m.pairs();
    auto near = m.on[0].allocate(100, memory_kind::pinned).value(),
         shared = m.on[0].allocate(100, memory_kind::shared).value();
    auto far = m.filled(0, 100, 1), to = m.filled(1, 100, 0);
    const auto before = fake_cuda::live_allocations();
    fake_cuda::never_idle_for(std::this_thread::get_id());
    ending received;
    pairs[1].async_receive({to}, received.token());
    near = shared = far = {};
    CHECK(fake_cuda::live_allocations() == before - 3);
    auto from = m.filled(0, 100, 7);
    ending sent;
    pairs[0].async_send({from}, {}, {}, sent.token());
    CHECK(m.drive([&] { return sent.over && received.over; }));
    CHECK(all_bytes_are(to, 7));
    fake_cuda::never_idle_for({});
  }
  check_clean();
}

TEST_CASE(
    "fake_nccl: without ranks memory is given back where it is let go of; who finds no room waits for what is on its "
    "way") {
  fake_cuda::reset({.memory = 1 << 20});
  {
    driven m;
    auto d = open_device(m.ctx.get_executor(), "cuda:0").value();
    auto most = d.allocate(700 << 10).value();
    const auto calls = fake_cuda::calls("cudaFree");
    most = {};
    CHECK(fake_cuda::calls("cudaFree") == calls + 1);
    for (int i = 0; i < 50; ++i) {
      const cokv::detail::kernels_wait waits;
      most = d.allocate(700 << 10).value();
      most = {};
    }
  }
  check_clean();
}
