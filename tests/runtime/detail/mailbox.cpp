#include "cokv/runtime/detail/mailbox.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <latch>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

using namespace cokv;
using cokv::detail::mailbox;

TEST_CASE("mailbox: what other threads post runs on the context's, each thread's in its order") {
  asio::io_context ctx(1);
  auto work = asio::make_work_guard(ctx);
  const mailbox back(ctx.get_executor());
  constexpr int senders = 4, messages = 2000;
  std::vector<int> last(senders, -1);
  int elsewhere = 0, received = 0;
  const auto loop = std::this_thread::get_id();
  std::vector<std::thread> threads;
  for (int t = 0; t < senders; ++t)
    threads.emplace_back([&, back, t] {
      for (int i = 0; i < messages; ++i)
        CHECK(back.post([&, t, i] {
          elsewhere += std::this_thread::get_id() != loop;
          CHECK(last[t] == i - 1);
          last[t] = i;
          if (++received == senders * messages) work.reset();
        }));
    });
  ctx.run();
  for (auto& t : threads) t.join();
  CHECK(received == senders * messages);
  CHECK(elsewhere == 0);
}

TEST_CASE("mailbox: after its context it refuses, and destroys what it was given uncalled") {
  std::optional<mailbox> back;
  bool called = false;
  auto queued = std::make_shared<int>(), late = std::make_shared<int>();
  {
    asio::io_context ctx(1);
    back.emplace(ctx.get_executor());
    CHECK(back->open());
    CHECK(back->post([&called, queued] { called = true; }));
    CHECK(queued.use_count() == 2);
  }
  CHECK(queued.use_count() == 1);
  CHECK(!back->open());
  CHECK(!back->post([&called, late] { called = true; }));
  CHECK(late.use_count() == 1);
  CHECK(!mailbox(*back).post([&called] { called = true; }));
  CHECK(!called);
}

TEST_CASE("mailbox: a context that goes under its senders takes a message or refuses it, never anything else") {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> accepted{0}, ended{0}, refused{0};
    std::latch begun(2);
    std::vector<std::thread> threads;
    {
      asio::io_context ctx(1);
      const mailbox back(ctx.get_executor());
      for (int t = 0; t < 2; ++t)
        threads.emplace_back([&, back] {
          begun.count_down();
          for (;;) {
            std::shared_ptr<void> mark(nullptr, [&](void*) { ++ended; });
            if (!back.post([mark] {})) break;
            ++accepted;
          }
          ++refused;
        });
      begun.wait();
      for (int i = 0; i < 10; ++i) ctx.poll_one();
    }
    for (auto& t : threads) t.join();
    CHECK(refused == 2);
    CHECK(ended == accepted + 2);
  }
}

TEST_CASE("mailbox: it is no work of its context") {
  asio::io_context ctx(1);
  const mailbox back(ctx.get_executor());
  CHECK(ctx.run() == 0);
}
