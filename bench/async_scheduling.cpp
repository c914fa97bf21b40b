// What does preparing each next step while one runs give? Tokens a second and processor time of requests that decode,
// 1 to 32 at once, alternating.
#include "engine_bed.hpp"

using namespace cokv;
using namespace cokv::bench;

int main(int argc, char** argv) {
  CLI::App app{"Synchronous against asynchronous scheduling"};
  engine_bed bed;
  bed.add_options(app);
  std::uint32_t prompt = 16, output = 64;
  app.add_option("--prompt", prompt, "tokens of each prompt")->capture_default_str();
  app.add_option("--output", output, "tokens of each answer")->capture_default_str();
  app.add_option("--device", bed.device_name, "cpu, or cuda:N")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  asio::io_context loading{1};
  auto where = open_device(loading.get_executor(), bed.device_name);
  if (!where) return std::fprintf(stderr, "--device: %s\n", explain_device(bed.device_name).c_str()), 2;
  bed.load(*where);
  std::printf("%s, prompts of %u tokens, %u out, medians of %d\n\n", bed.name.c_str(), prompt, output, bed.repeat);
  std::puts("| at once | sync tokens/s | async tokens/s | async / sync | sync CPU ms/token | async | CPU ratio |");
  std::puts("|---|---|---|---|---|---|---|");
  boost::json::array rows;
  for (std::size_t n : {1, 2, 4, 8, 16, 32}) {
    bed_engine engines[2] = {{bed, {.prefix_cache = false}, {}},
                             {bed, {.prefix_cache = false, .async_scheduling = true}, {}}};
    std::vector<std::vector<token_id>> prompts;
    for (std::size_t i = 0; i < n; ++i) prompts.push_back(bed.prompt(prompt, i));
    std::vector<double> rate[2], cpu[2], ratio, cpu_ratio;
    for (int r = -1; r < bed.repeat; ++r) {
      run_cost c[2];
      for (int way : {r & 1, 1 - (r & 1)}) c[way] = engines[way].serve(prompts, output);
      if (r < 0) continue;
      for (int way : {0, 1}) {
        rate[way].push_back(static_cast<double>(c[way].tokens) / c[way].seconds);
        cpu[way].push_back(1e3 * c[way].cpu / static_cast<double>(c[way].tokens));
      }
      ratio.push_back(rate[1].back() / rate[0].back());
      cpu_ratio.push_back(cpu[1].back() / cpu[0].back());
    }
    std::printf("| %zu | %.0f | %.0f | %.3f | %.3f | %.3f | %.3f |\n", n, middle(rate[0]), middle(rate[1]),
                middle(ratio), middle(cpu[0]), middle(cpu[1]), middle(cpu_ratio));
    rows.push_back({{"at_once", n},
                    {"sync_tokens_s", middle(rate[0])},
                    {"async_tokens_s", middle(rate[1])},
                    {"ratio", middle(ratio)},
                    {"cpu_ratio", middle(cpu_ratio)}});
  }
  bed.write("async_scheduling", rows);
  return 0;
}
