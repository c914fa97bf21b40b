// What does sending all new KV away cost an engine that computes prompts? Four different prompts, one token out, nothing
// found; against the same engine without tiers, for budgets from 1,024 tokens a step to 32, with the device's cache and
// without, the next step prepared or not. The tier is host memory, full as a cache is, or a cache server.
#include "cokv/kvstream/http_store.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "engine_bed.hpp"

using namespace cokv;
using namespace cokv::bench;

int main(int argc, char** argv) {
  CLI::App app{"What sending KV away costs"};
  engine_bed bed;
  bed.add_options(app);
  std::uint32_t prompt = 2048, count = 4, least = 32;
  std::string remote;
  app.add_option("--prompt", prompt, "tokens of each prompt")->capture_default_str();
  app.add_option("--count", count, "prompts")->capture_default_str();
  app.add_option("--least", least, "the smallest budget")->capture_default_str();
  app.add_option("--remote", remote, "a cache server's URL; host memory unless told");
  CLI11_PARSE(app, argc, argv);
  bed.load();
  std::printf("%s, %u prompts of %u tokens, 1 out, to %s, medians of %d pairs; throughput of sending / not\n\n",
              bed.name.c_str(), count, prompt, remote.empty() ? "host memory" : remote.c_str(), bed.repeat);
  std::puts("| budget | device cache | scheduling | not sending tokens/s | sending tokens/s | ratio | CPU ratio |");
  std::puts("|---|---|---|---|---|---|---|");
  // What a round sends fits: the first fills it, and from then on memory is used that was used before.
  const auto room = bed.what->kv_geometry(16).block_bytes() * count * (prompt / 16 + 1);
  const auto tiers = [&](asio::any_io_executor ex) -> std::vector<kv_tier> {
    std::shared_ptr<store> to;
    if (remote.empty())
      to = std::make_shared<memory_store>(ex, memory_store_options{.limit_bytes = room});
    else
      to = std::make_shared<http_store>(ex, remote, http_store_options{});
    return {{.name = "out", .blocks = std::move(to), .load = false, .max_pending_blocks = std::size_t{1} << 30}};
  };
  boost::json::array rows;
  std::uint64_t seed = 1;
  for (std::uint32_t budget = 1024; budget >= least; budget /= 2)
    for (bool cached : {true, false})
      for (bool ahead : {false, true}) {
        engine_options o{.kv_blocks = 2 * count * (prompt / 16 + 2),
                         .max_batched_tokens = budget,
                         .prefix_cache = cached,
                         .async_scheduling = ahead};
        bed_engine plain(bed, o, {}), sending(bed, o, tiers);
        std::vector<double> rate[2], ratio, cpu;
        for (int r = -1; r < bed.repeat; ++r) {
          std::vector<std::vector<token_id>> prompts;
          for (std::uint32_t i = 0; i < count; ++i) prompts.push_back(bed.prompt(prompt, seed++));
          run_cost c[2];
          for (int way : {r & 1, 1 - (r & 1)}) c[way] = (way ? sending : plain).serve(prompts, 1);
          if (r < 0) continue;
          for (int way : {0, 1}) rate[way].push_back(count * prompt / c[way].seconds);
          ratio.push_back(c[0].seconds / c[1].seconds);
          cpu.push_back(c[0].cpu / c[1].cpu);
        }
        sending.drain();
        const auto kv = sending.run->kv_counters().tiers[0];
        if (kv.dropped_blocks + kv.save_failures > 0) std::puts("blocks were dropped");
        std::printf("| %u | %s | %s | %.0f | %.0f | %.3f | %.3f |\n", budget, cached ? "on" : "off",
                    ahead ? "async" : "sync", middle(rate[0]), middle(rate[1]), middle(ratio), middle(cpu));
        std::fflush(stdout);
        rows.push_back({{"budget", budget},
                        {"device_cache", cached ? "on" : "off"},
                        {"scheduling", ahead ? "async" : "sync"},
                        {"plain_tokens_s", middle(rate[0])},
                        {"sending_tokens_s", middle(rate[1])},
                        {"ratio", middle(ratio)},
                        {"cpu_ratio", middle(cpu)}});
      }
  bed.write("transfer_out", rows);
  return 0;
}
