// Ways of doing the same thing, run in turn in one process and compared by the processor time that they take, which is
// what a loaded machine leaves comparable. Prints a Markdown table and writes --json.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "cokv/runtime/progress.hpp"

namespace cokv::bench {

struct cost {
  double ns = 0;   // wall time of one round
  double cpu = 0;  // processor time of all threads
};

inline double cpu_ns() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

template <class F>
cost timed(int rounds, F f) {
  const auto cpu = cpu_ns();
  const auto start = std::chrono::steady_clock::now();
  f();
  return {std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / rounds,
          (cpu_ns() - cpu) / rounds};
}

// body: a coroutine (io_context&, int rounds), on a context of its own.
template <class Body>
cost each(int rounds, Body body) {
  asio::io_context ctx(1);
  asio::co_spawn(ctx, body(ctx, rounds), [](std::exception_ptr e) {
    if (e) std::rethrow_exception(e);
  });
  return timed(rounds, [&] { run(ctx); });
}

struct way {
  std::string name;
  std::function<cost(int rounds)> run;
  std::string against = {};  // the way that it is compared with
  int share = 1;             // of the rounds
  std::vector<cost> samples = {};

  cost median() const {
    auto sorted = samples;
    std::sort(sorted.begin(), sorted.end(), [](auto& a, auto& b) { return a.cpu < b.cpu; });
    return sorted[sorted.size() / 2];
  }
};

inline int alternate(int argc, char** argv, const char* question, int rounds, std::vector<way> ways) {
  CLI::App app{question};
  int repeat = 9;
  std::string json_path;
  app.add_option("--rounds", rounds, "rounds of a run")->check(CLI::Range(100, 100'000'000))->capture_default_str();
  app.add_option("--repeat", repeat, "runs of each way, in turn")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--json", json_path, "also write the figures there");
  CLI11_PARSE(app, argc, argv);

  for (int r = 0; r < repeat; ++r)
    for (auto& w : ways) w.samples.push_back(w.run(std::max(1, rounds / w.share)));

  std::printf("%s\n\n| way | CPU ns (median of %d) | wall ns | ratio of CPU |\n|---|---|---|---|\n", question, repeat);
  std::string json;
  for (const auto& w : ways) {
    const auto base = std::find_if(ways.begin(), ways.end(), [&](auto& o) { return o.name == w.against; });
    const auto [ns, cpu] = w.median();
    const double ratio = base == ways.end() ? 0 : cpu / base->median().cpu;
    const std::string of = ratio > 0 ? CLI::detail::to_string(std::round(ratio * 100) / 100) + " x " + w.against : "";
    std::printf("| %s | %.1f | %.1f | %s |\n", w.name.c_str(), cpu, ns, of.c_str());
    char line[400];
    std::snprintf(line, sizeof line,
                  "%s\n  {\"way\": \"%s\", \"cpu_ns\": %.2f, \"ns\": %.2f, \"against\": \"%s\", \"ratio\": %.3f}",
                  json.empty() ? "" : ",", w.name.c_str(), cpu, ns, w.against.c_str(), ratio);
    json += line;
  }
  if (!json_path.empty()) std::ofstream(json_path) << "[" << json << "\n]\n";
  return 0;
}

}  // namespace cokv::bench
