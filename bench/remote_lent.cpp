// What does it save to write and read a cache's blocks where they lie? 512 blocks of a model, 8 tasks of 64 random blocks,
// a server in a process of its own. Set: over TCP, and by their places from a pool in shared memory, and from one that is not
// (by way of some that is). stream_get (layer by layer into the caller's memory) over TCP and from memory that the
// server lends, the first map of all blocks (every byte is digested) and a later one (views of what is known to be right).
// Beside it, alternating in one run, one memcpy an extent, one digest an extent, and one copy with its digest.
//
//     bench_remote_lent [--models NAME...] [--memory 8GiB] [--repeat 5] [--json FILE]
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdio>
#include <fstream>
#include <functional>

#include "cache/front.hpp"
#include "cokv/kvstream/digest.hpp"
#include "cokv/kvstream/http_store.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/size.hpp"
#include "other_process.hpp"
#include "store_rounds.hpp"
#include "throughput.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;

void serve(const model_shape& model, const std::string& path, const std::function<void(std::uint16_t)>& tell) {
  asio::io_context context(1);
  const auto ex = context.get_executor();
  memory_store memory(ex, {.limit_bytes = model.bytes(), .readable = true});
  const auto lending = std::make_shared<cache::lending>(memory.lent(), 4711, model.bytes(), path);
  cache::front front(
      ex, memory, {{"memory", &memory}},
      {.listen = {"127.0.0.1", 0}, .socket = path, .service = {.max_body = 2 * model.bytes(), .lending = lending}});
  tell(front.local_endpoint().port);
  asio::co_spawn(context, front.run(), asio::detached);
  run(context);
}

class remote {
 public:
  remote(const model_shape& model, const std::string& path)
      : model_(model),
        there_([&](auto tell) { serve(model, path, tell); }),
        sent_(on_.executor(), "http://127.0.0.1:" + std::to_string(there_.port()), {.shared_memory = false}),
        lent_(on_.executor(), "unix://" + path) {
    count_process(there_.id());
  }

  void set(const block_pool& from, int round, bool lent) { on_.run(bench::set(lent ? lent_ : sent_, from, round)); }
  void remove(int round) { on_.run(bench::remove(sent_, round)); }
  void get(const block_pool& into, int round, bool lent) { on_.run(bench::get(lent ? lent_ : sent_, into, round)); }
  // Views of everything, which are let go task by task.
  void map(int round) {
    on_.run(view_all(round));
    must_be(lent_.info().sent_reads == 0, "it was not lent");
  }

 private:
  awaitable<void> view_all(int round) {
    for (std::size_t first = 0; first < all_blocks; first += task_blocks) {
      const auto keys = keys_of_round(round, first, task_blocks);
      auto reader = co_await lent_.async_open_read(bench_space, model_.layout(), keys);
      for (std::uint32_t layer = 0; layer < model_.layers; ++layer)
        must_be(reader->view_now(layer).value().size() == task_blocks, "blocks are missing");
    }
  }

  model_shape model_;
  other_process there_;
  store_rounds on_;
  http_store sent_, lent_;
};

constexpr const char* ways[] = {"memcpy",   "digest",  "copy_digest", "tcp_set",   "shared_set",
                                "heap_set", "tcp_get", "lent_get",    "first_map", "later_map"};

template <class F>
void each_extent(const model_shape& model, F f) {
  for (std::uint32_t layer = 0; layer < model.layers; ++layer)
    for (std::size_t i = 0; i < all_blocks; ++i) f(layer, i);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"What does it save to write and read a cache's blocks where they lie?"};
  std::vector<std::string> names;
  std::string memory = "8GiB", json_path;
  int repeat = 5;
  app.add_option("--models", names, "instead of all that find room");
  app.add_option("--memory", memory, "for four copies of a model's blocks")->capture_default_str();
  app.add_option("--repeat", repeat, "rounds that count")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--json", json_path, "also write the figures there");
  CLI11_PARSE(app, argc, argv);

  const auto path = "/tmp/cokv-bench-lent-" + std::to_string(::getpid());
  std::printf("%zu blocks, %zu tasks of %zu; times in multiples of one memcpy an extent, medians of %d\n\n", all_blocks,
              tasks, task_blocks, repeat);
  std::printf(
      "| model | extent | memcpy | digest alone | copy and digest | set over TCP | set, shared pool | set, other pool "
      "| "
      "stream_get over TCP | stream_get, lent | first map | later map | CPU s a GB |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  std::string json;
  for (const auto& model : chosen_models(names, parse_size(memory).value(), 4)) {
    remote there(model, path);
    const block_pool from(model, 1);
    const block_pool shared(model, 1, allocate_shared(model.bytes()).value());
    block_pool into(model, 2);
    std::vector<std::vector<throughput>> samples(std::size(ways));
    for (int round = 0; round <= repeat; ++round) {
      std::uint64_t digests = 0;
      std::vector<throughput> one;
      const auto take = [&](auto f) { one.push_back(timed(model.bytes(), f)); };
      take([&] { from.copy_to(into, 0, all_blocks); });
      take([&] {
        each_extent(model, [&](auto layer, auto i) { digests ^= digest_of(from.extent(layer, i).bytes()); });
      });
      take([&] {
        each_extent(model, [&](auto layer, auto i) {
          digests ^= copy_digest(into.extent(layer, i).bytes(), from.extent(layer, i).bytes());
        });
      });
      for (int way = 0; way < 3; ++way) {
        if (way != 0) there.remove(round);
        take([&] { there.set(way == 1 ? shared : from, round, way != 0); });
      }
      for (const bool lent : {false, true}) {
        into.clear();
        take([&] { there.get(into, round, lent); });
        must_be(from.same(into), "wrong bytes");
      }
      for (int maps = 0; maps < 2; ++maps) take([&] { there.map(round); });
      there.remove(round);
      if (round == 0 && digests != 1)  // warm
        continue;
      for (std::size_t w = 0; w < one.size(); ++w) samples[w].push_back(one[w]);
    }
    ::unlink(path.c_str());
    const auto copy = median(samples[0]);
    std::printf("| %s | %s | %.1f GB/s |", model.name.c_str(), format_size(model.extent()).c_str(), copy.gb_s);
    char part[200];
    std::snprintf(part, sizeof part, "%s{\"model\": \"%s\", \"extent\": %zu, \"memcpy_gb_s\": %.3f",
                  json.empty() ? "\n  " : ",\n  ", model.name.c_str(), model.extent(), copy.gb_s);
    json += part;
    std::string cpu;
    for (std::size_t w = 1; w < samples.size(); ++w) {
      const auto middle = median(samples[w]);
      const auto multiple = copy.gb_s / middle.gb_s;
      std::snprintf(part, sizeof part, "%s%.2f", w == 1 ? "" : ", ", middle.cpu_s_gb);
      cpu += part;
      std::printf(" %.3f |", multiple);
      std::snprintf(part, sizeof part, ", \"%s\": %.4f", ways[w], multiple);
      json += part;
    }
    json += "}";
    std::printf(" %s |\n", cpu.c_str());
    std::fflush(stdout);
  }
  if (!json_path.empty()) std::ofstream(json_path) << "[" << json << "\n]\n";
  return 0;
}
