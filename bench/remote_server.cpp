// How far is the remote cache from a bare socket? 512 blocks of a model, 8 tasks of 64 random blocks, to a server in a
// process of its own and back over TCP on loopback: set (a task a request), set deferred, get (a block a request) and
// stream_get (a task a request, layer by layer), with digests and without. Beside it, alternating in one run, two
// processes with a bare socket that move the same extents in the same way, and one memcpy an extent.
//
//     bench_remote_server [--models NAME...] [--memory 10GiB] [--repeat 5] [--ways set,get...] [--json FILE]
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>

#include "cokv/runtime/size.hpp"
#include "raw_blocks.hpp"
#include "remote_cache.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;

struct row {
  const char* name;
  double reported::* seed;
  std::size_t at_once;  // blocks a request
  bool put, deferred = false;
};

constexpr row rows[] = {{"set", &reported::set, task_blocks, true},
                        {"set deferred", &reported::deferred, task_blocks, true, true},
                        {"get", &reported::get, 1, false},
                        {"stream_get", &reported::stream_get, task_blocks, false}};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"How far is the remote cache from a bare socket?"};
  std::vector<std::string> names, only;
  std::string memory = "10GiB", json_path;
  int repeat = 5;
  app.add_option("--models", names, "instead of all that find room");
  app.add_option("--ways", only, "instead of all");
  app.add_option("--memory", memory, "for five copies of a model's blocks")->capture_default_str();
  app.add_option("--repeat", repeat, "rounds that count")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--json", json_path, "also write the figures there");
  CLI11_PARSE(app, argc, argv);

  std::printf(
      "%zu blocks, %zu tasks of %zu, server and client a thread each; times in multiples of one memcpy an extent, ",
      all_blocks, tasks, task_blocks);
  std::printf("of the bare socket in brackets, medians of %d\n\n", repeat);
  std::printf(
      "| model | extent | memcpy | | bare socket | without digests | with digests | reported by the seed | CPU s a "
      "GB: ");
  std::printf("bare, without, with |\n|---|---|---|---|---|---|---|---|---|\n");
  std::string json;
  for (const auto& model : chosen_models(names, parse_size(memory).value(), 5)) {
    raw_client raw(model);
    remote_cache off(model, digest_algorithm::none), on(model, digest_algorithm::xxh3_64);
    const block_pool from(model, 1);
    block_pool into(model, 2);
    int round = 0;
    for (const auto& r : rows) {
      if (!only.empty() && std::find(only.begin(), only.end(), r.name) == only.end()) continue;
      std::vector<std::vector<throughput>> samples(4);
      const auto prepare = [&](const block_pool& pool) {  // what is got is what was set last
        for (auto* r : {&off, &on}) r->remove(round);
        ++round;
        for (auto* r : {&off, &on}) r->set(pool, round, false);
        for (std::size_t first = 0; first < all_blocks; first += task_blocks) raw.put(pool, first, task_blocks);
      };
      if (!r.put) prepare(from);
      for (int i = -1; i < repeat; ++i) {
        if (r.put) ++round;
        const auto http = [&](remote_cache& to) {
          return timed(model.bytes(),
                       [&] { r.put ? to.set(from, round, r.deferred) : to.get(into, round, r.at_once); });
        };
        std::vector<throughput> one{timed(model.bytes(), [&] { from.copy_to(into, 0, all_blocks); })};
        one.push_back(timed(model.bytes(), [&] {
          for (std::size_t first = 0; first < all_blocks; first += r.at_once)
            r.put ? raw.put(from, first, r.at_once) : raw.get(into, first, r.at_once);
        }));
        for (auto* to : {&off, &on}) {
          if (!r.put) into.clear();
          one.push_back(http(*to));
          if (!r.put) must_be(from.same(into), "wrong bytes");
        }
        if (i >= 0)
          for (std::size_t w = 0; w < one.size(); ++w) samples[w].push_back(one[w]);
      }
      const auto copy = median(samples[0]), bare = median(samples[1]), without = median(samples[2]),
                 with = median(samples[3]);
      std::printf("| %s | %s | %.1f GB/s | %s | %.2f | %.2f (%.2f) | %.2f (%.2f) | %.2f | %.2f, %.2f, %.2f |\n",
                  model.name.c_str(), format_size(model.extent()).c_str(), copy.gb_s, r.name, copy.gb_s / bare.gb_s,
                  copy.gb_s / without.gb_s, bare.gb_s / without.gb_s, copy.gb_s / with.gb_s, bare.gb_s / with.gb_s,
                  model.seed.*r.seed, bare.cpu_s_gb, without.cpu_s_gb, with.cpu_s_gb);
      std::fflush(stdout);
      char line[500];
      std::snprintf(
          line, sizeof line,
          "%s\n  {\"model\": \"%s\", \"way\": \"%s\", \"extent\": %zu, \"memcpy_gb_s\": %.3f, \"raw_gb_s\": %.3f, "
          "\"off_gb_s\": %.3f, \"on_gb_s\": %.3f, \"raw_cpu_s_gb\": %.3f, \"off_cpu_s_gb\": %.3f, "
          "\"on_cpu_s_gb\": %.3f, \"seed\": %.2f}",
          json.empty() ? "" : ",", model.name.c_str(), r.name, model.extent(), copy.gb_s, bare.gb_s, without.gb_s,
          with.gb_s, bare.cpu_s_gb, without.cpu_s_gb, with.cpu_s_gb, model.seed.*r.seed);
      json += line;
    }
  }
  if (!json_path.empty()) std::ofstream(json_path) << "[" << json << "\n]\n";
  return 0;
}
