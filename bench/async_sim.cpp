// How fast is virtual time? One coroutine that sleeps, and 1,000 that sleep at once.
//
//     bench_async_sim [--sleeps 1000000] [--json FILE]
#include <time.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <fstream>

#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/sim_context.hpp"

namespace {

using namespace cokv;

// Time of this thread alone: the machine may be busy with other things.
double cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

awaitable<void> sleeper(asio::any_io_executor ex, int sleeps, int step) {
  auto& time = clock::of(ex);
  for (int i = 0; i < sleeps; ++i) co_await time.async_wait_for(std::chrono::nanoseconds(1000 + step));
}

struct figure {
  double ns = 0;
  std::size_t steps = 0;
};

figure simulate(int coroutines, int sleeps) {
  sim_context context(1);
  for (int i = 0; i < coroutines; ++i)
    asio::co_spawn(context.get_executor(), sleeper(context.get_executor(), sleeps, i % 97), asio::detached);
  double start = cpu_ns();
  context.run();
  double ns = cpu_ns() - start;
  return {ns / (static_cast<double>(coroutines) * sleeps), context.steps()};
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"How fast is virtual time?"};
  int sleeps = 1'000'000;
  std::string json;
  app.add_option("--sleeps", sleeps, "virtual sleeps a run")->check(CLI::PositiveNumber);
  app.add_option("--json", json, "write the figures here");
  CLI11_PARSE(app, argc, argv);

  std::vector<double> one, thousand, events;
  for (int i = 0; i < 5; ++i) {
    one.push_back(simulate(1, sleeps).ns);
    figure many = simulate(1000, std::max(1, sleeps / 1000));
    thousand.push_back(many.ns);
    events.push_back(static_cast<double>(many.steps) / (many.ns * 1000 * std::max(1, sleeps / 1000)) * 1e9);
  }
  std::printf("| what, in CPU time | median of 5 |\n|---|---|\n");
  std::printf("| a virtual sleep, one coroutine | %.0f ns |\n", median(one));
  std::printf("| a virtual sleep, 1,000 coroutines | %.0f ns |\n", median(thousand));
  std::printf("| events, 1,000 coroutines | %.1f million/s |\n", median(events) / 1e6);
  if (!json.empty())
    std::ofstream(json) << "{\"virtual_sleep_ns\": " << median(one)
                        << ", \"virtual_sleep_1000_ns\": " << median(thousand)
                        << ", \"events_per_s\": " << median(events) << "}\n";
}
