#include "simulate/deployment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "checkpoint.hpp"
#include "cokv/engine/model.hpp"
#include "fit/profile.hpp"
#include "plan/cluster_file.hpp"

namespace cokv::simulate {
namespace {

// Rows between stages are moved as so many times fewer bytes over links that are so much slower: it takes as long.
constexpr double scale = 16;

engine_options engine_of(const options& o) {
  engine_options e{.block_tokens = o.block_tokens,
                   .max_batched_tokens = o.max_batched_tokens,
                   .max_running = o.max_running,
                   .max_requests = o.max_requests.value_or(std::max(4096u, o.closed_loop.value_or(0))),
                   .prefix_cache = false};
  if (o.microbatches) e.microbatches = *o.microbatches;
  return e;
}

sim::net_link link_of(double bytes_per_second, double seconds) {
  const auto late = std::chrono::duration_cast<duration>(std::chrono::duration<double>(seconds));
  return {.latency_min = late, .latency_max = late, .bytes_per_second = bytes_per_second / scale};
}

deployment of_fixed_times(const options& o) {
  if (o.tensor > 1) throw config_error("--tensor: times that are told with --stage-token are of a whole stage");
  deployment d;
  d.replica.split = topology(o.pipeline);
  d.replica.what = std::make_shared<fixed_price>(*o.stage_prompt / 1e3, *o.stage_token / 1e3);
  d.replica.max_sequence = 1 << 20;
  d.replica.engine = engine_of(o);
  d.replica.engine.kv_blocks = o.kv_blocks.value_or((1 << 20) / o.block_tokens);
  d.network = d.inside = link_of(1e15, 0);
  return d;
}

void check_ranks(const plan::machine_kind& m, std::uint32_t ranks) {
  if (ranks <= m.gpus) return;
  throw config_error(
      fmt::format("--tensor: {} ranks, and a machine {} has {} GPUs: at most {}", ranks, m.name, m.gpus, m.gpus));
}

double weights_of(const model_config& c, const plan::roofline& price, std::uint32_t depth, std::uint32_t stage) {
  const bool first = stage == 0, last = stage + 1 == depth;
  const int tables = first && last && c.tie_embeddings ? 1 : first + last;
  return topology(depth).layers(c.layers, stage).count * price.layer_bytes() + tables * price.table_bytes();
}

// Blocks of KV for which each stage has room, of `bytes` for them and weights.
double room(const options& o, const model_config& c, const plan::roofline& price, std::uint32_t depth, double bytes) {
  double least = 1e8;
  for (std::uint32_t s = 0; s < depth; ++s) {
    const double block = topology(depth).layers(c.layers, s).count * price.kv_bytes() * o.block_tokens;
    least = std::min(least, std::floor((bytes - weights_of(c, price, depth, s)) / block));
  }
  return std::max(least, 0.0);
}

[[noreturn]] void no_room(const options& o, const model_config& c, const plan::roofline& price, double bytes) {
  auto enough = o.pipeline;
  const auto most = std::min(c.layers, most_stages);
  while (enough < most && room(o, c, price, enough, bytes) < 1) ++enough;
  throw config_error(fmt::format(
      "--pipeline: the first of {} stages has {:.1f} GB of weights, and {} GPUs have {:.1f} GB "
      "for them and KV: {}",
      o.pipeline, weights_of(c, price, o.pipeline, 0) / 1e9, o.tensor, bytes / 1e9,
      room(o, c, price, enough, bytes) < 1 ? "no number of stages is enough; --tensor shares them out further"
                                           : fmt::format("{} stages are enough", enough)));
}

deployment by_sheet(const options& o) {
  const auto config = load_config(o.model);
  const auto m = plan::read_machine(o.cluster, o.machine);
  check_ranks(m, o.tensor);
  const topology split(o.pipeline, o.tensor);
  try {
    (void)part_of(config, {.split = split});
  } catch (const config_error& e) {
    throw config_error(std::string("--") + e.what());
  }
  const double bytes = o.dtype == "f32" ? 4 : 2;
  const plan::roofline sheet(
      config, bytes, m.gpu,
      {.ranks = o.tensor, .link = m.link_bytes_per_second, .arithmetic = o.arithmetic, .bandwidth = o.bandwidth});
  deployment d;
  d.replica.split = topology(o.pipeline);
  d.replica.what = std::make_shared<sheet_price>(sheet, config.layers, split);
  d.row_bytes = 4. * config.hidden;  // they are floats, whatever the weights are
  d.replica.row_bytes = static_cast<std::uint32_t>(std::ceil(d.row_bytes / scale));
  d.replica.max_sequence = config.max_positions;
  d.replica.engine = engine_of(o);
  const double bytes_a_stage = (1 - o.reserve) * o.tensor * m.gpu.memory_bytes;
  const auto blocks = static_cast<std::uint32_t>(room(o, config, sheet, o.pipeline, bytes_a_stage));
  if (blocks < 1) no_room(o, config, sheet, bytes_a_stage);
  if (o.kv_blocks && *o.kv_blocks > blocks)
    throw config_error(fmt::format("--kv-blocks: {}; there is room for {}", *o.kv_blocks, blocks));
  d.replica.engine.kv_blocks = o.kv_blocks.value_or(blocks);
  d.network = link_of(m.network_bytes_per_second, m.network_seconds);
  d.inside = link_of(m.link_bytes_per_second, 2e-6);
  d.stages_a_machine = m.gpus / o.tensor;
  // Stages lie one behind the other: a machine's GPUs may be of several replicas.
  d.machines = std::ceil(1. * o.replicas * o.pipeline / d.stages_a_machine);
  if (d.machines > m.count)
    throw config_error(fmt::format(
        "--replicas: {} of {} stages of {} GPUs take {:.0f} machines {}, and there are {}: {} "
        "are feasible",
        o.replicas, o.pipeline, o.tensor, d.machines, m.name, m.count, m.count * d.stages_a_machine / o.pipeline));
  d.price_per_hour = d.machines * m.price_per_hour;
  return d;
}

// Workers of one thread each, say, on machines with cores for one or several of them.
deployment by_profile(const options& o) {
  const auto p = fit::read_profile(o.profile);
  if (o.tensor > 1) throw config_error("--tensor: a profile is of whole layers");
  if (o.workers_a_machine > p.prompts_beside.size())
    throw config_error(
        fmt::format("--workers-a-machine: {}, and {} says what no more than {} take beside each other; cokv fit "
                    "--workers {} measures them",
                    o.workers_a_machine, o.profile, p.prompts_beside.size(), o.workers_a_machine));
  deployment d;
  try {
    d.replica.split = topology(o.pipeline);
    d.replica.split.check(p.layers);
  } catch (const config_error&) {
    throw config_error(fmt::format("--pipeline: {} stages of {} layers; at most one a layer", o.pipeline, p.layers));
  }
  d.row_bytes = 4. * p.hidden;
  d.replica.row_bytes = static_cast<std::uint32_t>(std::ceil(d.row_bytes / scale));
  d.replica.max_sequence = p.max_positions;
  d.replica.engine = engine_of(o);
  d.replica.engine.kv_blocks = o.kv_blocks.value_or(1024);
  d.network = d.inside = link_of(p.link_bytes_per_second, p.link_seconds);
  d.stages_a_machine = o.workers_a_machine;
  d.machines = std::ceil(1. * o.replicas * o.pipeline / d.stages_a_machine);
  d.shares_cores = o.workers_a_machine > 1;
  d.replica.what = std::make_shared<profile_price>(p, d.replica.split);
  return d;
}

}  // namespace

deployment deployment_of(const options& o) {
  if (o.stage_prompt.has_value() != o.stage_token.has_value())
    throw config_error(fmt::format("{}: goes with {}", o.stage_prompt ? "--stage-prompt" : "--stage-token",
                                   o.stage_prompt ? "--stage-token" : "--stage-prompt"));
  if (o.routers > o.replicas)
    throw config_error(
        fmt::format("--routers: {} of them have no more than {} replicas to share", o.routers, o.replicas));
  if (o.microbatches && o.pipeline == 1) throw config_error("--microbatches: is for --pipeline of 2 stages or more");
  if (o.workers_a_machine > 1 && o.profile.empty())
    throw config_error("--workers-a-machine: is for --profile, which says what they take beside each other");
  if (!o.profile.empty()) return by_profile(o);
  if (o.stage_prompt) return of_fixed_times(o);
  if (o.model.empty() || o.cluster.empty())
    throw config_error(
        "--model and --cluster say what a step takes, or --profile, or --stage-prompt and --stage-token");
  return by_sheet(o);
}

}  // namespace cokv::simulate
