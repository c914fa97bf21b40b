// What do systems that exist make of a remote cache's moves? 512 blocks of a model, 8 tasks of 64 random blocks, from and
// into the extents where they lie, over TCP on loopback, each with its server in a process of its own and all of them
// alternating in one run: our cache, which digests every byte on both sides; redis-server through hiredis; ZeroMQ; and a
// bare socket. The others digest nothing. Set and stream_get by layers of a task, get a block a request.
//
//     bench_remote_baselines [--models NAME...] [--memory 10GiB] [--repeat 5] [--json FILE]
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>

#include "cokv/runtime/size.hpp"
#include "redis_blocks.hpp"
#include "remote_cache.hpp"
#include "zeromq_blocks.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;

struct row {
  const char* name;
  std::size_t at_once;  // blocks a request
  bool put;
};
constexpr row rows[] = {{"set", task_blocks, true}, {"get", 1, false}, {"stream_get", task_blocks, false}};

// All blocks once; what was got is what was put.
template <class System>
throughput move(System& to, const row& r, const block_pool& from, block_pool& into) {
  if (!r.put) into.clear();
  const auto out = timed(from.model().bytes(), [&] {
    for (std::size_t first = 0; first < all_blocks; first += r.at_once)
      r.put ? to.put(from, first, r.at_once) : to.get(into, first, r.at_once);
  });
  if (!r.put) must_be(from.same(into), "wrong bytes");
  return out;
}

// Under keys that were not used before: a cache replaces nothing that it has.
throughput move(remote_cache& to, const row& r, const block_pool& from, block_pool& into, int& round) {
  if (r.put) ++round;
  if (!r.put) into.clear();
  const auto out =
      timed(from.model().bytes(), [&] { r.put ? to.set(from, round, false) : to.get(into, round, r.at_once); });
  if (!r.put) must_be(from.same(into), "wrong bytes");
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"What do systems that exist make of a remote cache's moves?"};
  std::vector<std::string> names;
  std::string memory = "10GiB", json_path;
  int repeat = 5;
  app.add_option("--models", names, "instead of all that find room");
  app.add_option("--memory", memory, "for six copies of a model's blocks")->capture_default_str();
  app.add_option("--repeat", repeat, "rounds that count")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--json", json_path, "also write the figures there");
  CLI11_PARSE(app, argc, argv);

  std::printf(
      "%zu blocks, %zu tasks of %zu; GB/s and, in brackets, CPU seconds a GB of both processes; medians of %d\n\n",
      all_blocks, tasks, task_blocks, repeat);
  std::printf("| model | extent | | bare socket | cokv, with digests | Redis | ZeroMQ | cokv over Redis: GB/s, CPU | ");
  std::printf("cokv over ZeroMQ: GB/s, CPU |\n|---|---|---|---|---|---|---|---|---|\n");
  std::string json;
  for (const auto& model : chosen_models(names, parse_size(memory).value(), 6)) {
    raw_client raw(model);
    redis_blocks in_redis(model);
    remote_cache in_cokv(model, digest_algorithm::xxh3_64);
    zeromq_blocks by_zeromq(model);  // the last: it has threads
    const block_pool from(model, 1);
    block_pool into(model, 2);
    int round = 0;
    for (const auto& r : rows) {
      std::vector<std::vector<throughput>> samples(4);
      for (int i = -1; i < repeat; ++i) {
        const std::vector<throughput> one{move(raw, r, from, into), move(in_cokv, r, from, into, round),
                                          move(in_redis, r, from, into), move(by_zeromq, r, from, into)};
        for (std::size_t w = 0; i >= 0 && w < one.size(); ++w) samples[w].push_back(one[w]);
      }
      const auto bare = median(samples[0]), ours = median(samples[1]), redis = median(samples[2]),
                 zeromq = median(samples[3]);
      std::printf("| %s | %s | %s ", model.name.c_str(), format_size(model.extent()).c_str(), r.name);
      for (const auto& t : {bare, ours, redis, zeromq}) std::printf("| %.2f (%.2f) ", t.gb_s, t.cpu_s_gb);
      for (const auto& t : {redis, zeromq})
        std::printf("| %.2f, %.2f ", ours.gb_s / t.gb_s, t.cpu_s_gb / ours.cpu_s_gb);
      std::printf("|\n");
      std::fflush(stdout);
      char line[500];
      std::snprintf(line, sizeof line,
                    "%s\n  {\"model\": \"%s\", \"way\": \"%s\", \"extent\": %zu, \"raw_gb_s\": %.3f, "
                    "\"cokv_gb_s\": %.3f, \"redis_gb_s\": %.3f, \"zeromq_gb_s\": %.3f, \"raw_cpu_s_gb\": %.3f, "
                    "\"cokv_cpu_s_gb\": %.3f, \"redis_cpu_s_gb\": %.3f, \"zeromq_cpu_s_gb\": %.3f}",
                    json.empty() ? "" : ",", model.name.c_str(), r.name, model.extent(), bare.gb_s, ours.gb_s,
                    redis.gb_s, zeromq.gb_s, bare.cpu_s_gb, ours.cpu_s_gb, redis.cpu_s_gb, zeromq.cpu_s_gb);
      json += line;
    }
  }
  if (!json_path.empty()) std::ofstream(json_path) << "[" << json << "\n]\n";
  return 0;
}
