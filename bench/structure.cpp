// What does structure cost? CPU nanoseconds an operation of channels, semaphores, scopes and deadlines, beside what
// bare Asio takes for the same, medians of several runs in one process.
//
//     bench_structure [--json FILE]
#include <algorithm>
#include <boost/asio/experimental/channel.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/with.hpp"

namespace {

using namespace cokv;
using namespace std::chrono_literals;
using body = std::function<awaitable<void>(int)>;

double cpu_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

double measure(int n, const body& run) {
  std::vector<double> ns;
  for (int i = 0; i < 7; ++i) {
    asio::io_context ctx(1);
    asio::co_spawn(
        ctx,
        [&]() -> awaitable<void> {
          const double start = cpu_ns();
          co_await run(n);
          ns.push_back((cpu_ns() - start) / n);
        },
        asio::detached);
    ctx.run();
  }
  std::sort(ns.begin(), ns.end());
  return ns[ns.size() / 2];
}

awaitable<void> nothing() { co_return; }

awaitable<void> try_channel(int n) {
  channel<int> ch(co_await asio::this_coro::executor, 64);
  for (int i = 0; i < n; ++i) {
    ch.try_send(i);
    ch.try_receive();
  }
}

awaitable<void> immediate_channel(int n) {
  channel<int> ch(co_await asio::this_coro::executor, 64);
  for (int i = 0; i < n; ++i) {
    co_await ch.async_send(i);
    co_await ch.async_receive();
  }
}

awaitable<void> immediate_asio_channel(int n) {
  asio::experimental::channel<void(error_code, int)> ch(co_await asio::this_coro::executor, 64);
  for (int i = 0; i < n; ++i) {
    co_await ch.async_send(error_code(), i, asio::deferred);
    co_await ch.async_receive(asio::deferred);
  }
}

awaitable<void> hand_over(int n) {
  channel<int> ch(co_await asio::this_coro::executor, 1);
  auto v = co_await with(task_group{}, [&](task_group& g) -> awaitable<void> {
    g.spawn([&]() -> awaitable<void> {
      for (int i = 0; i < n; ++i) co_await ch.async_send(i);
    });
    for (int i = 0; i < n; ++i) co_await ch.async_receive();
  });
  if (!v) std::abort();
}

awaitable<void> permits(int n) {
  semaphore sem(co_await asio::this_coro::executor, 1);
  for (int i = 0; i < n; ++i) auto p = sem.try_acquire();
}

awaitable<void> scope(int n, int children) {
  for (int i = 0; i < n; ++i) {
    auto v = co_await with(task_group{}, [&](task_group& g) -> awaitable<void> {
      for (int c = 0; c < children; ++c) g.spawn(nothing());
      co_return;
    });
    if (!v) std::abort();
  }
}

awaitable<void> asio_group(int n) {
  auto ex = co_await asio::this_coro::executor;
  for (int i = 0; i < n; ++i)
    co_await asio::experimental::make_parallel_group(asio::co_spawn(ex, nothing(), asio::deferred),
                                                     asio::co_spawn(ex, nothing(), asio::deferred))
        .async_wait(asio::experimental::wait_for_all(), asio::deferred);
}

awaitable<void> deadlines(int n) {
  channel<int> ch(co_await asio::this_coro::executor, 1);
  for (int i = 0; i < n; ++i) {
    ch.try_send(i);
    if (!co_await with_deadline(ch.async_receive(), 1h)) std::abort();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const struct {
    const char* name;
    int n;
    body run;
  } rows[] = {
      {"channel: try_send and try_receive", 2'000'000, try_channel},
      {"channel: async_send and async_receive, room and value there", 200'000, immediate_channel},
      {"the same with asio::experimental::channel", 200'000, immediate_asio_channel},
      {"channel: one value from coroutine to coroutine", 200'000, hand_over},
      {"semaphore: try_acquire and release", 2'000'000, permits},
      {"with: a body and no children", 100'000, [](int n) { return scope(n, 0); }},
      {"with: a body and two children", 100'000, [](int n) { return scope(n, 2); }},
      {"parallel_group of two co_spawn", 100'000, asio_group},
      {"with_deadline around an operation", 100'000, deadlines},
  };
  std::string json;
  std::printf("| operation | ns |\n|---|---|\n");
  for (const auto& row : rows) {
    const double ns = measure(row.n, row.run);
    std::printf("| %s | %.0f |\n", row.name, ns);
    json += std::string(json.empty() ? "" : ",\n") + "  {\"operation\": \"" + row.name +
            "\", \"ns\": " + std::to_string(ns) + "}";
  }
  if (argc == 3 && !std::strcmp(argv[1], "--json")) std::ofstream(argv[2]) << "[\n" << json << "\n]\n";
}
