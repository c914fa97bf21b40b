// Whole engines for benches of what they move: a checkpoint, prompts nobody asked before, and what a set of
// requests takes.
#pragma once

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "alternate.hpp"
#include "cokv/engine/engine.hpp"
#include "cokv/runtime/device.hpp"

namespace cokv::bench {

struct engine_bed {
  std::string model = COKV_SOURCE_DIR "/models/tiny-kjv", type = "bf16", json_path, random;
  std::string device_name = "cpu";  // of bed_engine
  bool batch_invariant = false;
  int threads = 0, repeat = 5;
  std::shared_ptr<cokv::model> what;
  std::string name;

  void add_options(CLI::App& app) {
    app.add_option("--model", model, "folder of a checkpoint")->capture_default_str();
    app.add_option("--random-weights", random, "config.json of a model of random numbers, instead")
        ->check(CLI::ExistingFile);
    app.add_option("--dtype", type, "bf16 or f32")->capture_default_str();
    app.add_flag("--batch-invariant", batch_invariant, "one way of multiplying for any number of rows");
    app.add_option("--threads", threads, "of the CPU device; 0: all");
    app.add_option("--repeat", repeat, "pairs, in turn")->check(CLI::Range(1, 1000))->capture_default_str();
    app.add_option("--json", json_path, "also write the figures there");
  }
  model_options options(device where = {}) const {
    return {.compute = *parse_dtype(type), .where = std::move(where), .batch_invariant = batch_invariant};
  }
  void load(device where = {}) {
    const model_options how{
        .compute = *parse_dtype(type), .where = std::move(where), .batch_invariant = batch_invariant};
    what = random.empty() ? load_model(model, how) : random_model(random, how);
    set_name();
  }
  void set_name() {
    name = random.empty() ? std::filesystem::path(model).filename().string()
                          : "random " + std::filesystem::path(random).stem().string();
  }

  std::vector<token_id> prompt(std::size_t n, std::uint64_t seed) const {
    std::vector<token_id> out(n);
    for (auto& t : out) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      t = static_cast<token_id>((seed >> 33) % what->config().vocab);
    }
    return out;
  }

  void write(const char* bench, const boost::json::array& rows) const {
    if (!json_path.empty())
      std::ofstream(json_path) << boost::json::serialize(
                                      boost::json::object{{"bench", bench}, {"model", name}, {"rows", rows}})
                               << '\n';
  }
};

struct run_cost {
  double seconds = 0, cpu = 0;
  std::uint64_t tokens = 0;
  double cached = 0;  // of the prompts' tokens
};

// An engine on a context of its own, and its tiers with it.
class bed_engine {
 public:
  bed_engine(const engine_bed& bed, engine_options o,
             const std::function<std::vector<kv_tier>(asio::any_io_executor)>& tiers)
      : device_(open_device(io_.get_executor(), bed.device_name, {.threads = bed.threads}).value()) {
    if (tiers) o.tiers = tiers(io_.get_executor());
    run.emplace(io_.get_executor(), device_, bed.what, std::nullopt, std::move(o));
  }

  // All at once; until the last answer is complete.
  run_cost serve(const std::vector<std::vector<token_id>>& prompts, std::uint32_t output) {
    const auto before = run->counters();
    const auto cpu = cpu_ns();
    const auto start = std::chrono::steady_clock::now();
    std::vector<generation> all;
    for (auto& p : prompts)
      all.push_back(
          run->submit({.prompt = p, .max_tokens = output, .sampling = {.temperature = 0}, .ignore_end_tokens = true})
              .value());
    std::size_t left = all.size();
    for (auto& g : all) asio::co_spawn(io_, to_its_end(g, left), asio::detached);
    io_.restart();
    while (left > 0) io_.run_one();
    run_cost out{std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
                 (cpu_ns() - cpu) / 1e9};
    const auto after = run->counters();
    if (after.failed > before.failed) throw std::runtime_error("a request failed");
    out.tokens = after.generated_tokens - before.generated_tokens;
    out.cached = static_cast<double>(after.cached_tokens - before.cached_tokens) /
                 static_cast<double>(after.prompt_tokens - before.prompt_tokens);
    return out;
  }
  void drain() {
    bool over = false;
    run->async_drain([&](error_code) { over = true; });
    io_.restart();
    while (!over) io_.run_one();
  }

 private:
  static awaitable<void> to_its_end(generation& g, std::size_t& left) {
    for (;;) {
      auto [ec, piece] = co_await g.async_next(asio::as_tuple(asio::deferred));
      if (ec) break;
    }
    --left;
  }

  asio::io_context io_{1};
  device device_;

 public:
  std::optional<engine> run;
};

inline double middle(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

}  // namespace cokv::bench
