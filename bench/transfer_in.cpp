// What does KV that was computed before give, the more of a prompt is found? Requests of which a share of the prompt,
// none to all in tenths, was asked before; then an engine with an empty device that finds everything in the tier behind
// it: its line should be flat. Requests a second, for each scheduling.
#include "cokv/kvstream/http_store.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "engine_bed.hpp"

using namespace cokv;
using namespace cokv::bench;

int main(int argc, char** argv) {
  CLI::App app{"What KV that was computed before gives"};
  engine_bed bed;
  bed.add_options(app);
  std::uint32_t prompt = 1000, output = 24, count = 40, most = 10;
  std::string remote;
  bool ahead = false;
  app.add_option("--prompt", prompt, "tokens of each prompt")->capture_default_str();
  app.add_option("--output", output, "tokens of each answer")->capture_default_str();
  app.add_option("--count", count, "requests")->capture_default_str();
  app.add_option("--tenths", most, "hit rates up to so many tenths")->capture_default_str();
  app.add_option("--remote", remote, "a cache server's URL; host memory unless told");
  app.add_flag("--async", ahead, "prepare each next step while one runs");
  CLI11_PARSE(app, argc, argv);
  bed.load();
  std::printf("%s, %u requests of %u tokens in and %u out, budget 1024, from %s, %s, medians of %d\n\n",
              bed.name.c_str(), count, prompt, output, remote.empty() ? "host memory" : remote.c_str(),
              ahead ? "async" : "sync", bed.repeat);
  std::puts("| hit rate | first pass requests/s | cached | second pass requests/s | cached | of hit rate 1 |");
  std::puts("|---|---|---|---|---|---|");
  struct row {
    double first, first_cached, second, second_cached;
  };
  std::vector<row> all;
  std::uint64_t seed = 1;
  for (std::uint32_t tenths = 0; tenths <= most; ++tenths) {
    std::vector<double> rate[2], cached[2];
    for (int r = 0; r < bed.repeat; ++r) {
      const auto common = bed.prompt(prompt, seed++);
      std::vector<std::vector<token_id>> prompts;
      for (std::uint32_t i = 0; i < count; ++i) {
        prompts.push_back(bed.prompt(prompt, seed++));
        std::copy_n(common.begin(), prompt * tenths / 10, prompts.back().begin());
      }
      std::shared_ptr<store> kept;  // lives on a context of its own: it moves from engine to engine by its bytes
      asio::io_context io(1);
      const auto device = open_device(io.get_executor(), "cpu", {.threads = bed.threads}).value();
      if (remote.empty())
        kept = std::make_shared<memory_store>(io.get_executor(),
                                              memory_store_options{.limit_bytes = std::uint64_t{4} << 30});
      else
        kept = std::make_shared<http_store>(io.get_executor(), remote, http_store_options{});
      for (int pass : {0, 1}) {
        engine_options o{.kv_blocks = (count + 2) * ((prompt + output) / 16 + 2), .async_scheduling = ahead};
        o.tiers = {{.name = "tier", .blocks = kept, .max_pending_blocks = std::size_t{1} << 30}};
        engine e(io.get_executor(), device, bed.what, std::nullopt, o);
        auto serve = [&](const std::vector<std::vector<token_id>>& of, std::uint32_t n) {
          std::vector<generation> running;
          for (auto& p : of)
            running.push_back(
                e.submit({.prompt = p, .max_tokens = n, .sampling = {.temperature = 0}, .ignore_end_tokens = true})
                    .value());
          std::size_t left = running.size();
          for (auto& g : running)
            asio::co_spawn(
                io,
                [](generation& g, std::size_t& left) -> awaitable<void> {
                  while (!std::get<0>(co_await g.async_next(asio::as_tuple(asio::deferred)))) {
                  }
                  --left;
                }(g, left),
                asio::detached);
          io.restart();
          while (left > 0) io.run_one();
        };
        if (pass == 0 && tenths > 0) serve({common}, 1);  // asked before
        const auto before = e.counters();
        const auto start = std::chrono::steady_clock::now();
        serve(prompts, output);
        rate[pass].push_back(count / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        const auto after = e.counters();
        cached[pass].push_back(static_cast<double>(after.cached_tokens - before.cached_tokens) /
                               static_cast<double>(after.prompt_tokens - before.prompt_tokens));
        bool over = false;
        e.async_drain([&](error_code) { over = true; });
        io.restart();
        while (!over) io.run_one();
      }
    }
    all.push_back({middle(rate[0]), middle(cached[0]), middle(rate[1]), middle(cached[1])});
  }
  boost::json::array rows;
  for (std::size_t t = 0; t < all.size(); ++t) {
    const auto& a = all[t];
    std::printf("| %.1f | %.1f | %.2f | %.1f | %.2f | %.3f |\n", static_cast<double>(t) / 10, a.first, a.first_cached,
                a.second, a.second_cached, a.second / all.back().second);
    rows.push_back({{"hit_rate", static_cast<double>(t) / 10},
                    {"first_requests_s", a.first},
                    {"second_requests_s", a.second},
                    {"of_hit_rate_1", a.second / all.back().second}});
  }
  bed.write("transfer_in", rows);
  return 0;
}
