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
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "cokv/runtime/device.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/timeline.hpp"

namespace {

using namespace cokv;

template <class Body>
double ns_each(int rounds, Body body) {
  asio::io_context ctx(1);
  double ns = 0;
  asio::co_spawn(
      ctx,
      [](int rounds, Body& body, double& ns, asio::io_context& ctx) -> awaitable<void> {
        const auto start = std::chrono::steady_clock::now();
        co_await body(ctx, rounds);
        ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / rounds;
      }(rounds, body, ns, ctx),
      asio::detached);
  run(ctx);
  return ns;
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
  std::function<double(int)> run;
  std::vector<double> samples = {};

  double median() const {
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

  std::printf("| way | ns (median of %d) | fastest | slowest | ratio |\n|---|---|---|---|---|\n", repeat);
  std::string json;
  for (auto& w : ways) {
    const auto base = std::find_if(ways.begin(), ways.end(), [&](auto& o) { return std::string(o.name) == w.against; });
    const auto [low, high] = std::minmax_element(w.samples.begin(), w.samples.end());
    char ratio[64] = "";
    if (base != ways.end()) std::snprintf(ratio, sizeof ratio, "%.2f x %s", w.median() / base->median(), w.against);
    std::printf("| %s | %.0f | %.0f | %.0f | %s |\n", w.name, w.median(), *low, *high, ratio);
    json += std::string(json.empty() ? "" : ",") + "\n  {\"way\": \"" + w.name +
            "\", \"ns\": " + std::to_string(w.median()) + ", \"fastest\": " + std::to_string(*low) +
            ", \"slowest\": " + std::to_string(*high) + "}";
  }
  if (!json_path.empty()) std::ofstream(json_path) << "[" << json << "\n]\n";
}
