#include "plan/plan.hpp"

#include <fmt/format.h>

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>

#include "checkpoint.hpp"
#include "cli/result_file.hpp"
#include "cokv/engine/model.hpp"
#include "cokv/kvstream/lending_bound.hpp"
#include "load/workload.hpp"
#include "plan/cluster_file.hpp"
#include "plan/roofline.hpp"
#include "plan/split.hpp"

namespace cokv::plan {
namespace {

namespace json = boost::json;

// What is asked, all in numbers.
struct question {
  model_config config;
  machine_kind machine;
  roofline price;
  split_problem split;
  bool prompt_told = false, token_told = false;
};

double mean(const workload::length_distribution& d) { return d.deviation > 0 ? d.mean : (d.least + d.most) / 2.; }

question ask(const options& o) {
  const auto config = load_config(o.model);
  const auto machine = read_machine(o.cluster, o.machine);
  try {
    (void)part_of(config, {.split = topology(1, machine.gpus)});
  } catch (const config_error& e) {
    throw config_error(o.cluster + ": " + machine.name + ": " + e.what());
  }
  const auto lengths = workload::parse_lengths(o.load.lengths).value();
  const auto prompt = static_cast<std::uint32_t>(std::lround(mean(lengths.prompt)));
  const auto output = static_cast<std::uint32_t>(std::lround(mean(lengths.output)));
  if (prompt + output > config.max_positions)
    throw config_error(fmt::format("--lengths: {} tokens of a prompt and {} of its answer are more than the model's {}",
                                   prompt, output, config.max_positions));
  const roofline price(config, o.dtype == "f32" ? 4 : 2, machine.gpu,
                       {.ranks = machine.gpus,
                        .link = machine.link_bytes_per_second,
                        .arithmetic = o.arithmetic,
                        .bandwidth = o.bandwidth});
  const double layers = config.layers;
  const auto prompts = step_load::of(prompt).times(o.microbatch);
  const auto tokens = step_load::of(1, prompt + output / 2.).times(o.microbatch);
  return {.config = config,
          .machine = machine,
          .price = price,
          .split = {.machines = machine.count,
                    .machine_bytes = (1 - o.reserve) * machine.memory_bytes(),
                    .layers = config.layers,
                    .layer_bytes = price.layer_bytes(),
                    .kv_bytes = price.kv_bytes(),
                    .first_bytes = price.table_bytes(),
                    .last_bytes = price.table_bytes(),
                    .both_bytes = (config.tie_embeddings ? 1 : 2) * price.table_bytes(),
                    .prompt = prompt,
                    .output = output,
                    .microbatch = o.microbatch,
                    .prompt_seconds =
                        o.prompt_ms ? *o.prompt_ms / 1e3 : price.layers(prompts, layers) + price.logits(o.microbatch),
                    .token_seconds =
                        o.token_ms ? *o.token_ms / 1e3 : price.layers(tokens, layers) + price.logits(o.microbatch),
                    .overhead = o.overhead},
          .prompt_told = o.prompt_ms.has_value(),
          .token_told = o.token_ms.has_value()};
}

// How much of its KV a machine that decodes may keep in the memory of machines that compute prompts.
struct loan {
  std::string over;
  double percent = 0, layers = 0, bytes = 0;  // that hide; whole layers of a stage; of a machine
  std::optional<double> free = {};            // of prompt machines, for each that decodes
  bool memory_binds = false;
};

struct loans {
  double kv_bytes = 0;  // of a full machine that decodes
  std::uint32_t stage_layers = 0;
  std::vector<loan> by_link;
};

loans lending(const question& q, const split_plan& plan, const options& o) {
  const auto& s = q.split;
  loans all;
  all.stage_layers = (s.layers + plan.token_depth - 1) / plan.token_depth;
  const double weights = all.stage_layers * s.layer_bytes + s.end_bytes(plan.token_depth);
  all.kv_bytes = s.machine_bytes - weights;
  const double free = (s.machine_bytes - s.prompt_bytes(plan.prompt_depth)) * plan.prompt_depth / plan.token_depth;
  const double memory = o.bandwidth * q.machine.gpus * q.machine.gpu.memory_bytes_per_second;
  // In the time in which each microbatch gets a token all KV is read once, and the weights with each microbatch. Of what others
  // have, `free` may be taken.
  const auto over = [&](std::string name, double link, std::optional<double> free) {
    const lending_bound bound{.link = link,
                              .memory = memory,
                              .kv_bytes = all.kv_bytes,
                              .other = lending_bound::seconds(plan.token_depth * weights / memory)};
    loan l{.over = std::move(name), .percent = bound.percent(), .free = free};
    l.layers = bound.layers(all.stage_layers);
    const double layer = all.kv_bytes / all.stage_layers;
    if (free && l.layers * layer > *free) l.memory_binds = true, l.layers = std::floor(*free / layer);
    l.bytes = l.layers * layer;
    all.by_link.push_back(std::move(l));
  };
  over("to prompt machines, over the network", q.machine.network_bytes_per_second, free);
  if (q.machine.gpus > 1)
    over("between GPUs, in a machine of both", q.machine.gpus * q.machine.link_bytes_per_second, std::nullopt);
  return all;
}

std::string gb(double bytes) { return fmt::format("{:.1f} GB", bytes / 1e9); }

void print(std::ostream& out, const question& q, const options& o) {
  const auto& s = q.split;
  const auto& m = q.machine;
  out << fmt::format(
      "{}: {} layers, each with {} of weights and {:.0f} bytes of KV a token\n"
      "{} machines {} of {} x {}: of {} each, {} for weights and KV\n"
      "Prompts of {} tokens, answers of {}, {} at a time\n\n",
      q.config.architecture, s.layers, gb(s.layer_bytes), s.kv_bytes, m.count, m.name, m.gpus,
      m.gpu.name.size() > 16 ? "GPU" : m.gpu.name, gb(m.memory_bytes()), gb(s.machine_bytes), s.prompt, s.output,
      s.microbatch);
  const auto source = [&](bool told, const char* flag) {
    return told ? std::string(flag)
                : fmt::format("by its sheet, {:g} of arithmetic, {:g} of bandwidth", o.arithmetic, o.bandwidth);
  };
  out << fmt::format("  a microbatch's prompts   {:9.2f} ms  {}\n", 1e3 * s.prompt_seconds,
                     source(q.prompt_told, "--prompt-ms"));
  out << fmt::format("  a token of it            {:9.2f} ms  {}\n\n", 1e3 * s.token_seconds,
                     source(q.token_told, "--token-ms"));
}

void print(std::ostream& out, const question& q, const split_plan& p) {
  const auto& s = q.split;
  const auto row = [&](const char* name, std::uint32_t depth, std::uint32_t least, double bytes, double rate) {
    out << fmt::format("  {:<8}{:>9}{:>14}{:>14}{:>16.2f}\n", name, depth, least, gb(bytes), rate * s.microbatch);
  };
  out << "Two pipelines, a machine a stage (DejaVu)\n"
      << fmt::format("  {:<8}{:>9}{:>14}{:>14}{:>16}\n", "", "machines", "at least", "fullest", "requests/s");
  row("prompts", p.prompt_depth, p.least_prompt, s.prompt_bytes(p.prompt_depth), s.prompt_rate(p.prompt_depth));
  row("answers", p.token_depth, p.least_token, s.token_bytes(p.token_depth), s.token_rate(p.token_depth));
  const double rate = p.rate * s.microbatch, price = q.machine.price_per_hour * (p.prompt_depth + p.token_depth);
  out << fmt::format("  {:.2f} requests/s; ", rate);
  if (price > 0) out << fmt::format("{:.4g} a million tokens of answers; ", price / 3600 / rate / s.output * 1e6);
  out << (p.memory_binds ? fmt::format("memory binds: by time alone {} would decode", p.balanced_token)
                         : fmt::format("the time of {} binds", p.prompts_bind ? "prompts" : "answers"))
      << '\n';
  if (p.faster_token)
    out << fmt::format("  {} machines for answers would be faster by the same arithmetic: the formula rounds up\n",
                       *p.faster_token);
  if (const auto idle = s.machines - p.prompt_depth - p.token_depth; idle > 0)
    out << fmt::format("  {} machines have no layer: a second pair of pipelines is what they are for\n", idle);
}

void print(std::ostream& out, const loans& all) {
  out << fmt::format(
      "\nKV that a machine which decodes may lend when its memory is full: of {}, {} layers\n"
      "  {:<36}{:>10}{:>10}{:>12}   binds\n",
      gb(all.kv_bytes), all.stage_layers, "", "hides", "layers", "bytes");
  for (auto& l : all.by_link)
    out << fmt::format("  {:<36}{:>8.2f} %{:>10.0f}{:>12}   {}\n", l.over, l.percent, l.layers, gb(l.bytes),
                       l.memory_binds ? fmt::format("memory: prompt machines have {} for it", gb(*l.free)) : "link");
}

json::object to_json(const question& q, const split_plan& p, const loans& all) {
  const auto& s = q.split;
  json::array links;
  for (auto& l : all.by_link)
    links.push_back(json::object{{"over", l.over},
                                 {"percent", l.percent},
                                 {"layers", l.layers},
                                 {"bytes", l.bytes},
                                 {"binds", l.memory_binds ? "memory" : "link"}});
  return {{"prompt_ms", 1e3 * s.prompt_seconds},
          {"token_ms", 1e3 * s.token_seconds},
          {"split",
           {{"prompt_depth", p.prompt_depth},
            {"token_depth", p.token_depth},
            {"least_prompt_depth", p.least_prompt},
            {"least_token_depth", p.least_token},
            {"requests_per_s", p.rate * s.microbatch},
            {"prompt_bytes", s.prompt_bytes(p.prompt_depth)},
            {"token_bytes", s.token_bytes(p.token_depth)},
            {"binds", p.memory_binds   ? "memory"
                      : p.prompts_bind ? "prompts"
                                       : "answers"}}},
          {"lending", {{"kv_bytes", all.kv_bytes}, {"stage_layers", all.stage_layers}, {"by_link", std::move(links)}}}};
}

}  // namespace

int run(const options& o, cli::streams io) {
  cli::result_file file("--json", o.json);
  const auto q = ask(o);
  const auto found = split(q.split);
  print(io.out, q, o);
  if (!found.plan) {
    io.err << "cokv plan: no split fits: " << found.why << '\n';
    if (file.wanted()) file.write(json::serialize(json::object{{"why", found.why}}) + '\n');
    return 1;
  }
  print(io.out, q, *found.plan);
  const auto lent = lending(q, *found.plan, o);
  print(io.out, lent);
  if (file.wanted()) file.write(json::serialize(to_json(q, *found.plan, lent)) + '\n');
  return 0;
}

}  // namespace cokv::plan
