// How long does it take from the end of a kernel until who waits for it goes on, and what does waiting cost the CPU?
// cokv by words and by events, polling, armed and adaptive, against cudaStreamSynchronize (spinning, yielding,
// blocking), all in one run, in turn. Single kernels, ten at once, empty round trips, and kernels of 10 ms.
//
//     bench_async_gpu [--device cuda:0] [--rounds 500] [--json FILE]
//
// Without a device the same waits for a CPU stream, without CUDA's own.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cokv/runtime/device.hpp"
#include "cokv/runtime/progress.hpp"
#include "spin_kernel.hpp"

namespace {

using namespace cokv;
using namespace std::chrono_literals;
using steady = std::chrono::steady_clock;

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

struct figures {
  std::vector<double> micros;  // a round: launched until resumed, without the kernels' own time
  double wall = 0, cpu = 0;    // seconds, of all rounds

  double at(double fraction) {
    if (micros.empty()) return 0;
    std::sort(micros.begin(), micros.end());
    return micros[static_cast<std::size_t>(fraction * static_cast<double>(micros.size() - 1))];
  }
};

struct scenario {
  const char* name;
  std::uint64_t kernel_ns;
  int kernels;  // a round, each waited for after all were launched
  int share;    // of the rounds
};

constexpr scenario scenarios[] = {
    {"single kernel of 20 us", 20'000, 1, 1},
    {"10 kernels of 20 us, batched", 20'000, 10, 4},
    {"round trips, empty kernel", 0, 1, 1},
    {"kernels of 10 ms", 10'000'000, 1, 10},
};

awaitable<void> await_rounds(stream s, const scenario& what, int rounds, figures& f) {
  std::vector<event> ends;
  for (int r = 0; r < rounds; ++r) {
    const auto start = steady::now();
    ends.clear();
    for (int k = 0; k < what.kernels; ++k) {
      if (auto ec = bench::spin(s, what.kernel_ns)) throw boost::system::system_error(ec);
      ends.push_back(s.record());
    }
    for (auto& e : ends) co_await e.async_wait();
    f.micros.push_back(std::chrono::duration<double, std::micro>(steady::now() - start).count() -
                       static_cast<double>(what.kernel_ns) * what.kernels * 1e-3);
  }
}

struct way {
  std::string name;
  std::function<void(const scenario&, int rounds, figures&)> run;
  std::vector<figures> results = std::vector<figures>(std::size(scenarios));
};

// One context and device a run, as a program would have.
void by_cokv(const std::string& device, completion_signal signal, duration spin, const scenario& what, int rounds,
             figures& f) {
  asio::io_context ctx(1);
  auto d = open_device(ctx.get_executor(), device, {.threads = 1, .signal = signal}).value();
  auto s = d.make_stream({.name = "compute"}).value();
  std::exception_ptr failed;
  asio::co_spawn(ctx, await_rounds(s, what, rounds, f), [&](std::exception_ptr e) { failed = e; });
  run(ctx, {.spin = spin});
  if (failed) std::rethrow_exception(failed);
}

void by_cuda(const std::string& device, bench::blocking_wait how, const scenario& what, int rounds, figures& f) {
  if (!bench::set_blocking_wait(how)) return;
  asio::io_context ctx(1);
  auto d = open_device(ctx.get_executor(), device).value();
  auto s = d.make_stream().value();
  for (int r = 0; r < rounds; ++r) {
    const auto start = steady::now();
    for (int k = 0; k < what.kernels; ++k)
      if (auto ec = bench::spin(s, what.kernel_ns)) throw boost::system::system_error(ec);
    if (auto ec = bench::synchronize(s)) throw boost::system::system_error(ec);
    f.micros.push_back(std::chrono::duration<double, std::micro>(steady::now() - start).count() -
                       static_cast<double>(what.kernel_ns) * what.kernels * 1e-3);
    ctx.poll();
    progress::of(ctx.get_executor()).poll();
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string device = "cuda:0", json_path;
  int rounds = 500, repeat = 5;
  CLI::App app("From a kernel's end to the resumption of who waits for it");
  app.add_option("--device", device, "cuda:N or cpu")->capture_default_str();
  app.add_option("--rounds", rounds, "rounds of each scenario and way")
      ->capture_default_str()
      ->check(CLI::Range(10, 1000000));
  app.add_option("--repeat", repeat, "how often the ways take turns")->capture_default_str()->check(CLI::Range(1, 100));
  app.add_option("--json", json_path, "also write the figures there");
  CLI11_PARSE(app, argc, argv);
  {
    asio::io_context probe(1);
    if (auto d = open_device(probe.get_executor(), device); !d) {
      std::printf("%s\nThe CPU's form:\n\n", explain_device(device).c_str());
      device = "cpu";
    } else {
      std::printf("%s\n\n", explain_device(device).c_str());
    }
  }
  std::vector<way> ways;
  const auto add = [&](std::string name, completion_signal signal, duration spin) {
    ways.push_back({std::move(name),
                    [=, &device](const scenario& s, int n, figures& f) { by_cokv(device, signal, spin, s, n, f); }});
  };
  const bool cuda = device != "cpu";
  if (cuda) {
    for (auto [name, how] : {std::pair{"cudaStreamSynchronize, spin", bench::blocking_wait::spin},
                             std::pair{"cudaStreamSynchronize, yield", bench::blocking_wait::yield},
                             std::pair{"cudaStreamSynchronize, blocking", bench::blocking_wait::block}})
      ways.push_back({name, [how, &device](const scenario& s, int n, figures& f) { by_cuda(device, how, s, n, f); }});
    asio::io_context probe(1);
    if (open_device(probe.get_executor(), device, {.signal = completion_signal::word}))
      add("cokv, word, polling", completion_signal::word, duration::max());
    add("cokv, event, polling", completion_signal::event, duration::max());
  }
  add("cokv, armed", completion_signal::automatic, duration(0));
  add("cokv, adaptive (the default)", completion_signal::automatic, run_options().spin);

  for (int turn = 0; turn < repeat; ++turn)
    for (auto& w : ways)
      for (std::size_t i = 0; i < std::size(scenarios); ++i) {
        auto& f = w.results[i];
        const auto cpu = cpu_seconds();
        const auto start = steady::now();
        w.run(scenarios[i], std::max(1, rounds / repeat / scenarios[i].share), f);
        f.wall += std::chrono::duration<double>(steady::now() - start).count();
        f.cpu += cpu_seconds() - cpu;
      }

  std::string json;
  for (std::size_t i = 0; i < std::size(scenarios); ++i) {
    std::printf(
        "%s: beyond the kernels' own time, a round\n\n"
        "| way | p50 us | p99 us | CPU of one core | p50 against the first |\n|---|---|---|---|---|\n",
        scenarios[i].name);
    for (auto& w : ways) {
      auto& f = w.results[i];
      std::printf("| %s | %.2f | %.2f | %.1f %% | %+.2f us |\n", w.name.c_str(), f.at(0.5), f.at(0.99),
                  100 * f.cpu / f.wall, f.at(0.5) - ways.front().results[i].at(0.5));
      char line[400];
      std::snprintf(line, sizeof line,
                    "%s\n  {\"scenario\": \"%s\", \"way\": \"%s\", \"p50_us\": %.3f, \"p99_us\": %.3f, \"cpu\": %.4f}",
                    json.empty() ? "" : ",", scenarios[i].name, w.name.c_str(), f.at(0.5), f.at(0.99), f.cpu / f.wall);
      json += line;
    }
    std::printf("\n");
  }
  if (!json_path.empty()) std::ofstream(json_path) << "[" << json << "\n]\n";
}
