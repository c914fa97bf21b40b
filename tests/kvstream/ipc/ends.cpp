// What ends a transfer between two devices, on fake_cuda: a copy that has begun is waited for by whoever could reuse
// the memory, and nobody else.
#include <cuda_runtime_api.h>

#include "ipc/two_sides.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr std::size_t n = 80'000;

// Puts and gets, some at once, then a commit.
struct worker {
  explicit worker(two_sides& m) : machine(m) {
    pool = m.far->memory(2 * n, 1);
    into = m.far->windows.expose({pool.slice(0, n)}, window_access::both).value();
    from = m.far->windows.expose({pool.slice(n, n)}, window_access::get).value();
    there = into.ref(), thence = from.ref();
    data = m.near->memory(n, 2), back = m.near->memory(n, 3, memory_kind::device);
  }
  awaitable<void> run() {
    const auto link = machine.near->link;
    auto to = link.to(there);
    auto first = co_await async_flush(data, to, 0, {}, completion_level::visible, as_result);
    auto second = co_await async_fetch(link.from(thence), 0, back, {}, as_result);
    auto third = co_await to.async_commit(as_result);
    for (auto ec : {first.error(), second.error(), third.error()})
      if (ec && !error) error = ec;
  }
  void start() {
    asio::co_spawn(machine.near->ctx, run(),
                   asio::bind_cancellation_slot(cancel.slot(), [this](std::exception_ptr) { ended = true; }));
  }
  // The windows' owner wants the memory back; then it is its own.
  void take_back(bool devices = true) {
    ending revoked[2];
    into.async_revoke(revoked[0].token());
    from.async_revoke(revoked[1].token());
    CHECK(machine.drive([&] { return revoked[0].over && revoked[1].over; }, devices));
    CHECK(!fake_cuda::would_use(pool.data(), pool.size()));
    std::memset(pool.data(), 7, pool.size());
    machine.rest();
    CHECK(std::all_of(pool.data(), pool.data() + pool.size(), [](std::byte b) { return b == std::byte{7}; }));
  }
  bool right() const { return same(pool.slice(0, n), data) && same(pool.slice(n, n), back); }

  two_sides& machine;
  buffer pool, data, back;
  window into, from;
  window_ref there, thence;
  asio::cancellation_signal cancel;
  bool ended = false;
  error_code error;
};

}  // namespace

TEST_CASE(
    "cuda_ipc: fake_cuda: a revocation waits for the copy that is under way, whatever became of who asked for it") {
  enum class what { revoked, closed, terminal, total, near_dropped, far_closed, committed_elsewhere };
  for (auto cause : {what::revoked, what::closed, what::terminal, what::total, what::near_dropped, what::far_closed,
                     what::committed_elsewhere})
    for (bool puts : {true, false}) {
      CAPTURE(static_cast<int>(cause));
      CAPTURE(puts);
      start_machine();
      {
        two_sides m;
        m.connect();
        auto memory = m.far->memory(n, 1), mine = m.near->memory(n, 2);
        auto w = m.far->windows.expose({memory}, window_access::both).value();
        ending moved, revoked, committed;
        asio::cancellation_signal cancel;
        auto token = asio::bind_cancellation_slot(cancel.slot(), moved.token());
        if (puts)
          async_flush(mine, m.near->link.to(w.ref()), 0, {}, completion_level::visible, token);
        else
          async_fetch(m.near->link.from(w.ref()), 0, mine, {}, token);
        REQUIRE(m.drive([&] { return fake_cuda::would_use(memory.data(), n); }, false));
        if (cause == what::closed) m.near->link.close();
        if (cause == what::near_dropped) m.near->link = {};
        if (cause == what::far_closed) m.far->link.close();
        if (cause == what::terminal) cancel.emit(asio::cancellation_type::terminal);
        if (cause == what::total) cancel.emit(asio::cancellation_type::total);
        if (cause == what::committed_elsewhere) {
          m.near->link.to(w.ref()).async_commit(committed.token());
          m.rest(false);
          CHECK(committed.over == !puts);
          CHECK(w.committed() == !puts);
        }
        m.rest(false);
        CHECK(moved.over == (cause == what::terminal));
        w.async_revoke(revoked.token());
        for (int i = 0; i < 5; ++i) m.rest(false);
        CHECK(!revoked.over);
        CHECK(fake_cuda::would_use(memory.data(), n));
        if (!puts) CHECK(fake_cuda::would_use(mine.data(), n));
        CHECK(m.drive([&] { return revoked.over; }));
        CHECK(!fake_cuda::would_use(memory.data(), n));
        std::memset(memory.data(), 7, n);
        m.rest();
        CHECK(moved.over);
        CHECK(std::all_of(memory.data(), memory.data() + n, [](std::byte b) { return b == std::byte{7}; }));
        if (cause != what::closed && cause != what::near_dropped && cause != what::far_closed)
          CHECK(!m.near->link.error());
        if (cause == what::revoked) CHECK(moved.ec == errc::stale_reference);
      }
      check_clean();
    }
}

TEST_CASE("cuda_ipc: fake_cuda: cancelled at every step, it ends, and the memory can be had back") {
  for (auto type : {asio::cancellation_type::terminal, asio::cancellation_type::total}) {
    bool whole = false;
    for (std::size_t at = 0; !whole; ++at) {
      CAPTURE(at);
      REQUIRE(at < 3000);
      start_machine(at + 1);
      {
        two_sides m;
        m.connect();
        worker w(m);
        w.start();
        std::size_t step = 0;
        whole = true;
        CHECK(m.drive([&] {
          if (!w.ended && step++ == at) whole = false, w.cancel.emit(type);
          return w.ended;
        }));
        if (whole) {
          CHECK(!w.error);
          CHECK(w.right());
        }
        w.take_back();
        CHECK(!m.near->link.error());
      }
      check_clean();
    }
  }
}

TEST_CASE(
    "cuda_ipc: fake_cuda: either side destroyed at every step, the other gets its memory back and nothing leaks") {
  for (bool near : {true, false}) {
    bool whole = false;
    for (std::size_t at = 0; !whole; ++at) {
      CAPTURE(near);
      CAPTURE(at);
      REQUIRE(at < 3000);
      start_machine(at + 1);
      {
        two_sides m;
        m.connect();
        std::optional<worker> w(std::in_place, m);
        w->start();
        std::size_t step = 0;
        (void)m.drive([&] { return w->ended || step++ == at; });
        whole = w->ended;
        if (near) {
          m.near.reset();
          w->take_back();
        } else {
          w->into = {}, w->from = {};
          auto pool = std::exchange(w->pool, {});
          pool = {};
          m.far.reset();
          CHECK(m.drive([&] { return w->ended; }));
          m.rest();
          if (!whole) CHECK(w->error);
        }
      }
      check_clean();
    }
  }
}

TEST_CASE("cuda_ipc: fake_cuda: a failure of every k-th call ends in an error or not at all") {
  for (std::size_t k = 1;; ++k) {
    CAPTURE(k);
    start_machine(k);
    bool failed = false;
    {
      two_sides m;
      m.connect();
      worker w(m);
      const auto before = fake_cuda::calls("");
      fake_cuda::fail_call("", k, cudaErrorNotSupported);
      w.start();
      CHECK(m.drive([&] { return w.ended; }));
      failed = fake_cuda::calls("") - before >= k;
      if (!w.error) CHECK(w.right());
      if (w.error) CHECK(failed);
      w.take_back();
    }
    if (!failed) break;  // it is still to come: whatever is freed next
    check_clean();
    REQUIRE(k < 2000);
  }
}

TEST_CASE("cuda_ipc: fake_cuda: a copy that was begun and whose end can't be marked is waited for too") {
  for (bool words : {true, false}) {
    fake_cuda::reset({.devices = 2, .words = words});
    {
      two_sides m;
      m.connect();
      auto memory = m.far->memory(n, 1), mine = m.near->memory(n, 2);
      auto w = m.far->windows.expose({memory}, window_access::both).value();
      ending moved, revoked;
      put(m, mine, w.ref(), 0, moved);
      fake_cuda::fail_call(words ? "cuStreamWriteValue64" : "cudaEventRecord", 1, cudaErrorNotSupported);
      REQUIRE(m.drive([&] { return fake_cuda::would_use(memory.data(), n); }, false));
      w.async_revoke(revoked.token());
      for (int i = 0; i < 5; ++i) m.rest(false);
      CHECK(!moved.over);
      CHECK(!revoked.over);
      CHECK(m.drive([&] { return moved.over && revoked.over; }));
      CHECK(moved.ec);
      CHECK(!fake_cuda::would_use(memory.data(), n));
      CHECK(!m.near->link.error());
    }
    check_clean();
  }
}

TEST_CASE("cuda_ipc: fake_cuda: whenever the devices are lost, everything ends, and what ended well is right") {
  int failed = 0;
  for (std::size_t k = 1; k < 150; ++k) {
    CAPTURE(k);
    start_machine(k);
    {
      two_sides m;
      m.connect();
      worker w(m);
      fake_cuda::lose_after(k, cudaErrorIllegalAddress);
      w.start();
      CHECK(m.drive([&] { return w.ended; }));
      if (!w.error) CHECK(w.right());
      failed += !!w.error;
      ending revoked[2];
      w.into.async_revoke(revoked[0].token());
      w.from.async_revoke(revoked[1].token());
      CHECK(m.drive([&] { return revoked[0].over && revoked[1].over; }));
      std::memset(w.pool.data(), 7, w.pool.size());  // what a lost device had to do it does no more
      m.rest();
      CHECK(std::all_of(w.pool.data(), w.pool.data() + w.pool.size(), [](std::byte b) { return b == std::byte{7}; }));
    }
    fake_cuda::lose_after(0, 0);
    const auto wrong = fake_cuda::violations();
    CHECK_MESSAGE(wrong.empty(), (wrong.empty() ? "" : wrong.front()));
    start_machine();  // who opens a lost device resets it: here, not under the next test
    {
      two_sides again;
    }
  }
  CHECK(failed > 10);
  fake_cuda::reset();
}
