// What ends a pair of ranks, and that it is over then, on fake_nccl.
#include <cuda_runtime_api.h>

#include "nccl/two_devices.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

bool at_rest(two_devices& m) {
  return m.drive([] { return fake_nccl::live_communicators() == 0; });
}

// What ended it is over: the memory is the test's, and stays what the test makes of it.
void check_over(two_devices& m, const buffer& memory) {
  CHECK(!fake_cuda::would_use(memory.data(), memory.size()));
  std::memset(memory.data(), 7, memory.size());
  for (int i = 0; i < 200; ++i) m.round();
  CHECK(all_bytes_are(memory, 7));
}

}  // namespace

TEST_CASE("fake_nccl: an asynchronous error, a peer's abort and a peer's silence end what is under way, and the pair") {
  enum class what { error, peer, silence, sizes, dropped };
  for (auto cause : {what::error, what::peer, what::silence, what::sizes, what::dropped})
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      CAPTURE(static_cast<int>(cause));
      CAPTURE(seed);
      start_machine(seed, {.max_polls = static_cast<int>(seed % 3), .peer_notices = cause != what::silence});
      {
        two_devices m;
        cokv::detail::nccl_pair_options o;
        auto pairs = m.pairs(o);
        auto from = m.filled(1, 90, 1), into = m.filled(0, 90, 0), later = m.filled(0, 90, 0);
        const auto aborted = fake_nccl::aborted_communicators();
        ending received, queued, sent;
        if (cause == what::silence) {
          pairs = {};
          CHECK(at_rest(m));
          pairs = m.pairs({.stall = std::chrono::milliseconds(2)});
        }
        pairs[0].async_receive({into.slice(0, 30), into.slice(30, 60)}, received.token());
        pairs[0].async_receive({later}, queued.token());
        for (std::uint64_t i = 0; i < 4 * seed; ++i) m.round();
        if (cause == what::error) fake_nccl::raise(0, ncclSystemError);
        if (cause == what::peer) pairs[1].abort(errc::unavailable);
        if (cause == what::sizes) pairs[1].async_send({from}, {}, {}, sent.token());
        if (cause == what::dropped) pairs[0] = {};
        CHECK(m.drive([&] { return received.over && queued.over; }));
        CHECK(received.ec == queued.ec);
        if (cause == what::error) CHECK(received.ec.message() == "the system failed");
        if (cause == what::peer) CHECK(received.ec.message() == "the peer is gone");
        if (cause == what::silence) CHECK(received.ec == errc::deadline);
        if (cause == what::dropped) CHECK(received.ec == errc::closed);
        if (cause == what::sizes || cause == what::error) CHECK(received.ec.category().name() == std::string("nccl"));
        check_over(m, into);
        check_over(m, later);
        if (cause != what::dropped) {
          CHECK(pairs[0].status() == received.ec);
          ending again;
          pairs[0].async_receive({into}, again.token());
          CHECK(m.drive([&] { return again.over; }));
          CHECK(again.ec == received.ec);
        }
        if (cause == what::sizes) {
          CHECK(m.drive([&] { return sent.over; }));
          CHECK(sent.ec);
        }
        pairs = {};
        CHECK(at_rest(m));
        CHECK(fake_nccl::aborted_communicators() - aborted == (cause == what::silence ? 8 : 4));  // each one, once
      }
      check_clean();
    }
}

TEST_CASE("fake_nccl: a peer that doesn't come, one that is itself, and one on the same device") {
  start_machine();
  {
    two_devices m;
    const auto id = m.id();
    auto alone = m.get(m.connect(id, 0, {.set_up = std::chrono::milliseconds(3)}));
    CHECK(alone.error() == errc::deadline);
    CHECK(at_rest(m));
    CHECK(m.get(cokv::detail::nccl_pair::connect(fake_nccl::table(), m.on[0], id, 2, {})).error() ==
          errc::invalid_argument);
    auto cpu = open_device(m.ctx.get_executor(), "cpu").value();
    CHECK(m.get(cokv::detail::nccl_pair::connect(fake_nccl::table(), cpu, id, 0, {})).error() == errc::wrong_device);

    const auto other = m.id();
    ending ends[2];
    for (int rank = 0; rank < 2; ++rank)
      asio::co_spawn(m.ctx, cokv::detail::nccl_pair::connect(fake_nccl::table(), m.on[0], other, rank, {}),
                     [&, rank](std::exception_ptr, result<cokv::detail::nccl_pair> p) {
                       ends[rank].over = true;
                       ends[rank].ec = p ? error_code() : p.error();
                     });
    CHECK(m.drive([&] { return ends[0].over && ends[1].over; }));
    CHECK(ends[0].ec.value() == ncclInvalidUsage);
    CHECK(ends[1].ec.value() == ncclInvalidUsage);
    CHECK(at_rest(m));
  }
  check_clean();
}

TEST_CASE("fake_nccl: a transfer that has begun drains, or goes on without who cancelled it, and the pair lives") {
  for (auto type : {asio::cancellation_type::terminal, asio::cancellation_type::total}) {
    start_machine();
    {
      two_devices m;
      auto pairs = m.pairs();
      auto from = m.filled(0, 50, 4), into = m.filled(1, 50, 0);
      auto* data = into.data();
      ending received, sent, waits;
      asio::cancellation_signal cancel, early;
      // Before it has begun: nothing happened.
      auto never = std::make_shared<cokv::detail::timeline_core>(m.ctx.get_executor());
      pairs[0].async_send({from}, event(never, 1), [](std::uint64_t) { FAIL("it has begun"); },
                          asio::bind_cancellation_slot(early.slot(), waits.token()));
      pairs[1].async_receive({into}, asio::bind_cancellation_slot(cancel.slot(), received.token()));
      for (int i = 0; i < 50; ++i) m.round();
      early.emit(type);
      CHECK(m.drive([&] { return waits.over; }));
      CHECK(waits.ec == asio::error::operation_aborted);
      CHECK(fake_cuda::would_use(data, 50));
      const auto kept = into.slice(0, 50).use_count();
      cancel.emit(type);
      for (int i = 0; i < 50; ++i) m.round();
      CHECK(received.over == (type == asio::cancellation_type::terminal));
      if (received.over) CHECK(received.ec == asio::error::operation_aborted);
      CHECK(into.slice(0, 50).use_count() >= kept - 2);
      CHECK(fake_cuda::would_use(data, 50));
      into = {};  // the transfer has its own
      pairs[0].async_send({from}, {}, {}, sent.token());
      CHECK(m.drive([&] { return sent.over && received.over; }));
      CHECK(!sent.ec);
      if (type == asio::cancellation_type::total) CHECK(!received.ec);
      for (int i = 0; i < 50; ++i) m.round();
      auto again = m.filled(1, 50, 0);
      ending second, there;
      pairs[0].async_send({from}, {}, {}, second.token());
      pairs[1].async_receive({again}, there.token());
      CHECK(m.drive([&] { return second.over && there.over; }));
      CHECK(all_bytes_are(again, 4));
    }
    check_clean();
  }
}

TEST_CASE("fake_nccl: closing waits for what is under way, takes nothing new, and gives up on a peer that doesn't") {
  start_machine();
  {
    two_devices m;
    auto pairs = m.pairs();
    auto from = m.filled(0, 50, 4), into = m.filled(1, 50, 0);
    ending received, closed, late, sent, there;
    pairs[1].async_receive({into}, received.token());
    pairs[1].async_close(closed.token());
    pairs[1].async_receive({into}, late.token());
    CHECK(m.drive([&] { return late.over; }));
    CHECK(late.ec == errc::closed);
    pairs[0].async_send({from}, {}, {}, sent.token());
    CHECK(m.drive([&] { return received.over && sent.over; }));
    CHECK(!received.ec);
    CHECK(!closed.over);
    pairs[0].async_close(there.token());
    CHECK(m.drive([&] { return closed.over && there.over; }));
    CHECK(!closed.ec);
    CHECK(!there.ec);
    CHECK(fake_nccl::aborted_communicators() == 0);

    pairs = m.pairs({.stall = std::chrono::milliseconds(2)});
    ending alone;
    pairs[1].async_close(alone.token());
    CHECK(m.drive([&] { return alone.over; }));
    CHECK(alone.ec == errc::deadline);
    pairs = {};
    CHECK(at_rest(m));
  }
  check_clean();
}

TEST_CASE("fake_nccl: a failure ends the calls of NCCL, and a context that goes then waits for what is on the device") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    const std::uint64_t kth = 1 + seed % 5;
    start_machine(seed, {.max_polls = static_cast<int>(seed % 3)});
    {
      two_devices m;
      auto pairs = m.pairs();
      auto from = m.filled(0, 50, 4), into = m.filled(0, 50, 0);
      ending sent, received;
      const auto asked = fake_cuda::calls("ncclCommGetAsyncError");
      pairs[0].async_receive({into}, received.token());
      pairs[0].async_send({from}, {}, {}, sent.token());
      fake_cuda::fail_call("ncclCommGetAsyncError", kth, ncclSystemError);
      for (int i = 0; i < 1000 && !pairs[0].status(); ++i) m.round();
      CHECK(pairs[0].status().message() == "the system failed");
      CHECK(fake_cuda::calls("ncclCommGetAsyncError") - asked == kth);
    }
    check_clean();
  }
}

TEST_CASE("fake_nccl: a device that is lost ends its pairs") {
  start_machine();
  {
    two_devices m;
    auto pairs = m.pairs();
    auto into = m.filled(0, 50, 0);
    ending received;
    pairs[0].async_receive({into}, received.token());
    for (int i = 0; i < 50; ++i) m.round();
    fake_cuda::lose_device(cudaErrorIllegalAddress);
    CHECK(m.drive([&] { return received.over; }));
    CHECK(received.ec);
    pairs = {};
    CHECK(at_rest(m));
  }
  const auto wrong = fake_cuda::violations();
  CHECK_MESSAGE(wrong.empty(), (wrong.empty() ? "" : wrong.front()));
  // Who opens a lost device resets it, and the stand-in then resets them all: here, not under the next test.
  start_machine();
  { two_devices again; }
  fake_cuda::reset();
  fake_nccl::reset();
}
