// How far are the memory store's moves from a memcpy of the same extents? 512 blocks of a model, 8 tasks of 64 random
// blocks: set and get by layers of a task, and a block at a time, into a store that is full, as a cache is.
// Beside it in the same run, alternating, one memcpy an extent between memory that was used before, and what a store is
// made of: copies that pass the caches, and those that also say what they copied. No store that checks is faster.
//
//     bench_remote_memory [--models NAME...] [--memory 8GiB] [--repeat 7] [--json FILE]
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>

#include "cokv/kvstream/digest.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "cokv/runtime/size.hpp"
#include "store_rounds.hpp"
#include "throughput.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;

struct way {
  const char* name;
  std::vector<throughput> samples = {};
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"How far are the memory store's moves from a memcpy of the same extents?"};
  std::vector<std::string> names;
  std::string memory = "8GiB", json_path;
  int repeat = 7;
  app.add_option("--models", names, "instead of all that find room");
  app.add_option("--memory", memory, "for three copies of a model's blocks")->capture_default_str();
  app.add_option("--repeat", repeat, "rounds that count")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--json", json_path, "also write the figures there");
  CLI11_PARSE(app, argc, argv);

  std::printf("%zu blocks, %zu tasks of %zu; times in multiples of the memcpy's, medians of %d\n\n", all_blocks, tasks,
              task_blocks, repeat);
  std::printf(
      "| model | extent | memcpy | bare: streamed | bare: streamed, digested | set | get | set, a block at a time | "
      "get, a "
      "block at a time | CPU s a GB |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|---|\n");
  std::string json;
  for (const auto& model : chosen_models(names, parse_size(memory).value(), 3)) {
    const block_pool from(model, 1);
    block_pool into(model, 2);
    store_rounds on;
    std::vector<way> ways{{"memcpy"}, {"streamed"}, {"digested"}, {"set"}, {"get"}, {"set_block"}, {"get_block"}};
    memory_store blocks(on.executor(), {.limit_bytes = model.bytes()});
    for (int r = -1; r < repeat; ++r) {
      std::vector<throughput> round{timed(model.bytes(), [&] { from.copy_to(into, 0, all_blocks); })};
      round.push_back(timed(model.bytes(), [&] {
        from.copy_to(into, 0, all_blocks, [](auto to, auto what) { copy_bytes(to, what, best_copy_path()); });
      }));
      round.push_back(timed(model.bytes(), [&] {
        from.copy_to(into, 0, all_blocks, [](auto to, auto what) { (void)copy_digest(to, what, best_copy_path()); });
      }));
      for (const std::size_t at_once : {task_blocks, std::size_t{1}}) {
        round.push_back(timed(model.bytes(), [&] { on.run(set(blocks, from, r, at_once)); }));
        round.push_back(timed(model.bytes(), [&] { on.run(get(blocks, into, r, at_once)); }));
        on.run(remove(blocks, r));
      }
      if (r < 0) continue;
      for (std::size_t w = 0; w < ways.size(); ++w) ways[w].samples.push_back(round[w]);
    }
    if (!from.same(into)) throw std::runtime_error("wrong bytes");
    const auto copy = median(ways[0].samples);
    std::printf("| %s | %s | %.1f GB/s |", model.name.c_str(), format_size(model.extent()).c_str(), copy.gb_s);
    std::string cpu;
    char part[200];
    std::snprintf(part, sizeof part, "%s{\"model\": \"%s\", \"extent\": %zu, \"memcpy_gb_s\": %.3f",
                  json.empty() ? "\n  " : ",\n  ", model.name.c_str(), model.extent(), copy.gb_s);
    json += part;
    for (std::size_t w = 0; w < ways.size(); ++w) {
      const auto m = median(ways[w].samples);
      if (w) std::printf(" %.2f |", copy.gb_s / m.gb_s);
      std::snprintf(part, sizeof part, "%s%.2f", w ? ", " : "", m.cpu_s_gb);
      cpu += part;
      if (w) std::snprintf(part, sizeof part, ", \"%s\": %.3f", ways[w].name, copy.gb_s / m.gb_s);
      if (w) json += part;
    }
    json += "}";
    std::printf(" %s |\n", cpu.c_str());
    std::fflush(stdout);
  }
  if (!json_path.empty()) std::ofstream(json_path) << "[" << json << "\n]\n";
  return 0;
}
