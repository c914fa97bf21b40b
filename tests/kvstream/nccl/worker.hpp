// A side of a pair that does a bit of everything, for tests that disturb it: it connects, sends layers as they are
// computed, receives the peer's as they are announced, looks at them, and closes.
#pragma once

#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/with.hpp"
#include "nccl/two_devices.hpp"

namespace cokv::test {

constexpr int worker_layers = 3;

struct worker {
  worker(two_devices& m, int rank) : machine(m), rank(rank), heard(m.ctx.get_executor(), 16) {}

  two_devices& machine;
  const int rank;
  channel<int> heard;  // layers that the peer has begun to send
  worker* peer = nullptr;
  bool ended = false;
  std::exception_ptr error;
  asio::cancellation_signal cancel;

  static std::size_t bytes(int layer) { return static_cast<std::size_t>(40 + 13 * layer); }

  awaitable<void> run(cokv::detail::nccl_id id) {
    auto made = co_await machine.connect(id, rank);
    if (!made) throw boost::system::system_error(made.error());
    auto& pair = *made;
    auto on = machine.on[static_cast<std::size_t>(rank)];
    auto compute = on.make_stream().value();
    auto verdict = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      for (int layer = 0; layer < worker_layers; ++layer) {
        auto kv = on.allocate(bytes(layer)).value(), computed = on.allocate(bytes(layer)).value();
        std::memset(computed.data(), 10 * layer + rank, computed.size());
        if (auto ec = compute.copy(kv, computed)) throw boost::system::system_error(ec);
        auto tell = [this, layer](std::uint64_t) { (void)peer->heard.try_send(layer); };
        group.spawn([&pair, kv, done = compute.record(), tell]() -> awaitable<void> {
          co_await pair.async_send({kv.slice(0, 8), kv.slice(8, kv.size() - 8)}, done, tell, asio::use_awaitable);
        });
      }
      for (int i = 0; i < worker_layers; ++i) {
        const int layer = co_await heard.async_receive(asio::use_awaitable);
        auto into = on.allocate(bytes(layer)).value();
        co_await pair.async_receive({into.slice(0, 8), into.slice(8, into.size() - 8)}, asio::use_awaitable);
        CHECK(all_bytes_are(into, 10 * layer + 1 - rank));
        CHECK(!fake_cuda::would_use(into.data(), into.size()));
      }
    });
    if (!verdict) throw boost::system::system_error(verdict.error());
    co_await pair.async_close(asio::use_awaitable);
  }

  void start(cokv::detail::nccl_id id) {
    asio::co_spawn(machine.ctx, run(id), asio::bind_cancellation_slot(cancel.slot(), [this](std::exception_ptr e) {
                     ended = true;
                     error = e;
                   }));
  }
};

struct two_workers {
  explicit two_workers(two_devices& m) : a(m, 0), b(m, 1) { a.peer = &b, b.peer = &a; }
  worker a, b;
  bool ended() const { return a.ended && b.ended; }

  // Runs them to their end, or until happens(step) says to leave. Whose peer has ended with an error hears of it.
  template <class Happens>
  bool run(two_devices& m, Happens happens) {
    const auto id = m.id();
    a.start(id);
    b.start(id);
    std::size_t step = 0;
    bool told = false;
    for (std::size_t i = 0; i < most_rounds && !ended(); ++i) {
      if (!m.round()) continue;
      if (!happens(step++)) return false;
      if (std::exchange(told, told || a.ended || b.ended)) continue;
      if (a.ended && a.error) b.cancel.emit(asio::cancellation_type::terminal);
      if (b.ended && b.error) a.cancel.emit(asio::cancellation_type::terminal);
    }
    CHECK(ended());
    CHECK(m.drive([&] { return fake_nccl::live_communicators() == 0; }));
    return true;
  }
};

}  // namespace cokv::test
