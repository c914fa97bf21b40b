// What does it cost a coroutine to wait for a device? A timeline position that was reached, one that another handler
// reaches, and one that a poll finds, against one asio::post; a CPU stream's empty kernel from enqueue to resumption,
// against a oneTBB enqueue and a post back, with the handler built by hand. The ways alternate in one run.
//
//     bench_async_wait [--rounds 200000] [--repeat 9] [--json FILE]
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "cokv/runtime/device.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/timeline.hpp"

namespace {

using namespace cokv;

struct sample {
  double ns = 0;   // wall time of one round
  double cpu = 0;  // processor time of all threads; what a loaded machine leaves comparable
  bool operator<(const sample& o) const { return ns < o.ns; }
};

double cpu_now() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

template <class Body>
sample ns_each(int rounds, Body body) {
  asio::io_context ctx(1);
  sample each;
  asio::co_spawn(
      ctx,
      [](int rounds, Body& body, sample& each, asio::io_context& ctx) -> awaitable<void> {
        const auto cpu = cpu_now();
        const auto start = std::chrono::steady_clock::now();
        co_await body(ctx, rounds);
        each.ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / rounds;
        each.cpu = (cpu_now() - cpu) / rounds;
      }(rounds, body, each, ctx),
      asio::detached);
  run(ctx);
  return each;
}

awaitable<void> one_post(asio::io_context& ctx, int rounds) {
  for (int i = 0; i < rounds; ++i) co_await asio::post(ctx.get_executor(), asio::deferred);
}

awaitable<void> reached(asio::io_context& ctx, int rounds) {
  timeline t(ctx.get_executor());
  t.advance(static_cast<std::uint64_t>(rounds));
  for (int i = 1; i <= rounds; ++i) co_await t.async_wait(static_cast<std::uint64_t>(i));
}

// Advanced by a handler of the same context: its post, the poll and the completion.
awaitable<void> advanced(asio::io_context& ctx, int rounds) {
  timeline t(ctx.get_executor());
  for (int i = 1; i <= rounds; ++i) {
    asio::post(ctx, [&t, i] { t.advance(static_cast<std::uint64_t>(i)); });
    co_await t.async_wait(static_cast<std::uint64_t>(i));
  }
}

// A word that changes without a word to anybody: what the loop's poll finds.
class polled_word final : public progress_source {
 public:
  explicit polled_word(asio::io_context& ctx)
      : progress_(progress::of(ctx.get_executor())), line_(ctx.get_executor(), word_) {
    progress_.add(*this);
  }
  ~polled_word() { progress_.remove(*this); }
  std::size_t poll() override {
    if (!waiting_) return 0;
    word_.store(waiting_, std::memory_order_release);  // the device's store, which costs the loop nothing there
    waiting_ = 0;
    line_.poll();
    return 1;
  }
  bool awaited() const override { return waiting_ != 0; }
  void arm() override {}
  auto async_wait(std::uint64_t position) {
    waiting_ = position;
    return line_.async_wait(position);
  }

 private:
  std::atomic<std::uint64_t> word_{0};
  std::uint64_t waiting_ = 0;
  progress& progress_;
  timeline line_;
};

awaitable<void> polled(asio::io_context& ctx, int rounds) {
  polled_word word(ctx);
  for (int i = 1; i <= rounds; ++i) co_await word.async_wait(static_cast<std::uint64_t>(i));
}

awaitable<void> stream_kernel(asio::io_context& ctx, int rounds) {
  auto device = open_device(ctx.get_executor(), "cpu", {.threads = 1}).value();
  auto stream = device.make_stream().value();
  for (int i = 0; i < rounds; ++i) {
    stream.launch("empty", [] {});
    co_await stream.record().async_wait();
  }
}

// 64 kernels a wait: what a step of a model does.
awaitable<void> stream_batch(asio::io_context& ctx, int rounds) {
  auto device = open_device(ctx.get_executor(), "cpu", {.threads = 1}).value();
  auto stream = device.make_stream().value();
  for (int i = 0; i < rounds; i += 64) {
    for (int k = 0; k < 64; ++k) stream.launch("empty", [] {});
    co_await stream.record().async_wait();
  }
}

awaitable<void> arena_and_post(asio::io_context& ctx, int rounds) {
  tbb::task_arena arena(1, 0);
  auto work = asio::make_work_guard(ctx);
  for (int i = 0; i < rounds; ++i)
    co_await asio::async_initiate<const asio::deferred_t, void()>(
        [&](auto handler) {
          using handler_type = decltype(handler);
          auto* h = new handler_type(std::move(handler));
          arena.enqueue([h, &ctx] {
            asio::post(ctx, [h] {
              auto handler = std::move(*h);
              delete h;
              std::move(handler)();
            });
          });
        },
        asio::deferred);
}

struct way {
  const char* name;
  const char* against;
  int share;  // of the rounds: a hop between threads costs more
  std::function<sample(int)> run;
  std::vector<sample> samples = {};

  sample median() const {
    auto sorted = samples;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

}  // namespace

int main(int argc, char** argv) {
  int rounds = 200'000, repeat = 9;
  std::string json_path;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    const int number = std::atoi(value.c_str());
    if (flag == "--rounds" && number > 0) {
      rounds = number;
    } else if (flag == "--repeat" && number > 0) {
      repeat = number;
    } else if (flag == "--json" && !value.empty()) {
      json_path = value;
    } else {
      std::fprintf(stderr, "usage: %s [--rounds N] [--repeat N] [--json FILE]\n", argv[0]);
      return 2;
    }
  }
  std::vector<way> ways{
      {"asio::post, awaited", "", 1, [](int n) { return ns_each(n, one_post); }},
      {"timeline, reached", "asio::post, awaited", 1, [](int n) { return ns_each(n, reached); }},
      {"timeline, found by a poll", "asio::post, awaited", 1, [](int n) { return ns_each(n, polled); }},
      {"timeline, advanced by a handler", "asio::post, awaited", 1, [](int n) { return ns_each(n, advanced); }},
      {"oneTBB enqueue and post back", "", 10, [](int n) { return ns_each(n, arena_and_post); }},
      {"CPU stream, kernel to resumption", "oneTBB enqueue and post back", 10,
       [](int n) { return ns_each(n, stream_kernel); }},
      {"CPU stream, one of 64 kernels", "oneTBB enqueue and post back", 10,
       [](int n) { return ns_each(n, stream_batch); }},
  };
  for (int r = 0; r < repeat; ++r)
    for (auto& w : ways) w.samples.push_back(w.run(rounds / w.share));

  std::printf("| way | ns (median of %d) | fastest | slowest | CPU ns | ratio of CPU |\n|---|---|---|---|---|---|\n",
              repeat);
  std::string json;
  for (auto& w : ways) {
    const auto base = std::find_if(ways.begin(), ways.end(), [&](auto& o) { return std::string(o.name) == w.against; });
    const auto [low, high] = std::minmax_element(w.samples.begin(), w.samples.end());
    char ratio[64] = "";
    if (base != ways.end())
      std::snprintf(ratio, sizeof ratio, "%.2f x %s", w.median().cpu / base->median().cpu, w.against);
    std::printf("| %s | %.0f | %.0f | %.0f | %.0f | %s |\n", w.name, w.median().ns, low->ns, high->ns, w.median().cpu,
                ratio);
    json += std::string(json.empty() ? "" : ",") + "\n  {\"way\": \"" + w.name +
            "\", \"ns\": " + std::to_string(w.median().ns) + ", \"cpu_ns\": " + std::to_string(w.median().cpu) +
            ", \"fastest\": " + std::to_string(low->ns) + ", \"slowest\": " + std::to_string(high->ns) + "}";
  }
  if (!json_path.empty()) std::ofstream(json_path) << "[" << json << "\n]\n";
}
