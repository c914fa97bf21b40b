#include "load/demand.hpp"

#include <CLI/App.hpp>
#include <fstream>

#include "cli/values.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv::workload {

std::vector<load_item> items_of(const demand& d) {
  std::vector<load_item> out;
  if (!d.trace.empty()) {
    std::ifstream from(d.trace);
    if (!from) throw config_error("--trace: " + d.trace + " can't be read");
    try {
      out = read_trace(from);
    } catch (const config_error& e) {
      throw config_error("--trace: " + d.trace + ", " + e.what());
    }
    if (out.empty()) throw config_error("--trace: " + d.trace + " has no request");
    if (d.requests && out.size() > *d.requests) out.resize(*d.requests);
  } else {
    const auto shape = parse_lengths(d.lengths).value();
    const workload::arrivals when{d.rate, d.requests, d.seconds ? std::optional<double>(*d.seconds) : std::nullopt};
    try {
      out = d.arrivals == "poisson" ? poisson(shape, when, d.seed) : uniform(shape, when, d.seed);
    } catch (const config_error& e) {
      throw config_error(std::string("--duration: ") + e.what());
    }
  }
  for (auto& item : out) {
    if (d.max_prompt) item.prompt_tokens = std::min(item.prompt_tokens, *d.max_prompt);
    if (d.max_output) item.output_tokens = std::min(item.output_tokens, *d.max_output);
  }
  return out;
}

CLI::Option* add_lengths(CLI::App& c, std::string& into, std::string help) {
  return c
      .add_option_function<std::string>(
          "--lengths",
          [&into](const std::string& text) {
            if (!parse_lengths(text))
              throw CLI::ValidationError("--lengths",
                                         text + ": takes sharegpt, lmsys, fixed:P:O or uniform:P1-P2:O1-O2");
            into = text;
          },
          std::move(help))
      ->default_str(into);
}

shape_flags add_shape(CLI::App& c, demand& d) {
  auto* arrivals = c.add_option("--arrivals", d.arrivals, "When requests come: independently, or one each 1/rate")
                       ->check(CLI::IsMember({"poisson", "uniform"}))
                       ->capture_default_str();
  auto* duration = cli::add_real(c, "--duration", d.seconds, 0, 1e6, "Seconds in which requests come", true);
  return {arrivals,
          duration,
          {cli::add_count(c, "--max-prompt", d.max_prompt, 1, 1 << 24, "Longer prompts are cut to so many tokens"),
           cli::add_count(c, "--max-output", d.max_output, 1, 1 << 24, "Longer answers are cut to so many tokens")}};
}

demand_flags add_demand(CLI::App& c, demand& d) {
  const auto [arrivals, duration, cuts] = add_shape(c, d);
  auto* rate = c.add_option("--rate", d.rate, "Requests a second")->check(CLI::Range(1e-3, 1e6))->capture_default_str();
  auto* lengths = add_lengths(c, d.lengths,
                              "Tokens of prompts and answers: fixed:P:O, uniform:P1-P2:O1-O2, or log-normal as "
                              "ShareGPT or LMSYS-Chat-1M (sharegpt, lmsys)");
  auto* trace = c.add_option("--trace", d.trace,
                             "Instead: a file of lines {\"at\": SECONDS, \"prompt_tokens\": N, \"output_tokens\": N}")
                    ->type_name("FILE");
  for (auto* other : {arrivals, rate, lengths}) trace->excludes(other);
  auto* requests =
      cli::add_count(c, "--requests", d.requests, 1, 10'000'000, "So many; 100 unless this or --duration is told");
  duration->excludes(trace);
  return {arrivals, rate, requests, duration, trace};
}

}  // namespace cokv::workload
