#include "simulate/deployment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "checkpoint.hpp"
#include "cokv/engine/model.hpp"
#include "fit/profile.hpp"
#include "plan/cluster_file.hpp"
#include "simulate/handed_on.hpp"
#include "simulate/roles.hpp"
#include "simulate/seconds.hpp"
#include "simulate/turns.hpp"

namespace cokv::simulate {
namespace {

// Rows between stages are moved as so many times fewer bytes over links that are so much slower: it takes as long.
constexpr double scale = 64;

engine_options engine_of(const options& o) {
  return {.block_tokens = o.block_tokens,
          .max_batched_tokens = o.max_batched_tokens,
          .max_running = o.max_running,
          .max_requests = o.max_requests.value_or(std::max(4096u, o.closed_loop.value_or(0))),
          .prefix_cache = false};
}

sim::net_link link_of(double bytes_per_second, double seconds) {
  const auto late = std::chrono::duration_cast<duration>(std::chrono::duration<double>(seconds));
  return {.latency_min = late, .latency_max = late, .bytes_per_second = bytes_per_second / scale};
}

// As it really is, for KV.
sim::net_link real(sim::net_link l) {
  l.bytes_per_second *= scale;
  return l;
}

role_deployment begun(const options& o, const role_wish& w) {
  role_deployment out{.replicas = w.replicas, .pipeline = w.pipeline, .tensor = w.tensor};
  out.each.name = w.name();
  out.each.role = w.role;
  out.each.split = topology(w.pipeline);
  out.each.engine = engine_of(o);
  if (w.role != cluster::worker_role::prefill && o.microbatches) out.each.engine.microbatches = *o.microbatches;
  constexpr float repair = 10;
  out.each.mortal = !o.fail.empty() || o.mtbf;
  out.each.repair_seconds.assign(w.pipeline, o.repair.value_or(repair));
  out.each.silence += of_seconds(4 * detect_seconds(o));
  out.each.copies = o.kv_copies > 0 && w.role != cluster::worker_role::prefill;
  return out;
}

deployment of_roles(std::vector<role_deployment> all, kv_shape kv, deployment d) {
  if (all.size() > 1 || all.back().each.copies) {
    kv.network = real(d.network), kv.inside = real(d.inside);
    kv.inside.bytes_per_second *= std::min(all.front().tensor, all.back().tensor);  // from rank to rank
    for (auto& r : all) r.each.kv = kv;
  }
  if (all.size() > 1) d.prompts = std::move(all.front());
  d.answers = std::move(all.back());
  return d;
}

deployment of_fixed_times(const options& o) {
  deployment d;
  std::vector<role_deployment> all;
  for (auto& w : wishes_of(o)) {
    if (w.tensor > 1)
      throw config_error(w.flags + "tensor: times that are told with --stage-token are of a whole stage");
    all.push_back(begun(o, w));
    auto& r = all.back().each;
    r.what = std::make_shared<fixed_price>(*o.stage_prompt / 1e3, *o.stage_token / 1e3);
    r.max_sequence = 1 << 20;
    r.engine.kv_blocks = w.kv_blocks.value_or((1 << 20) / o.block_tokens);
    take_turns(o, w, all.back(), [&](auto) {
      const double block = o.stage_swap.value_or(0) / 1e3;
      return block > 0 ? o.block_tokens / block : 1e12;
    });
  }
  d.network = d.inside = link_of(1e15, 0);
  (void)place_on(1, all);
  // As many as both pipelines share out equally: nothing is known of them.
  const auto layers = all.front().pipeline * all.back().pipeline;
  return of_roles(std::move(all), {.layers = layers, .step_seconds = o.stage_cache.value_or(0) / 1e3}, std::move(d));
}

void check_ranks(const plan::machine_kind& m, const role_wish& w) {
  if (w.tensor <= m.gpus) return;
  throw config_error(fmt::format("{}tensor: {} ranks, and a machine {} has {} GPUs: at most {}", w.flags, w.tensor,
                                 m.name, m.gpus, m.gpus));
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

[[noreturn]] void no_room(const options& o, const role_wish& w, const model_config& c, const plan::roofline& price,
                          double bytes) {
  auto enough = w.pipeline;
  const auto most = std::min(c.layers, most_stages);
  while (enough < most && room(o, c, price, enough, bytes) < 1) ++enough;
  throw config_error(
      fmt::format("{}pipeline: the first of {} stages has {:.1f} GB of weights, and {} GPUs have {:.1f} GB "
                  "for them and KV: {}",
                  w.flags, w.pipeline, weights_of(c, price, w.pipeline, 0) / 1e9, w.tensor, bytes / 1e9,
                  room(o, c, price, enough, bytes) < 1
                      ? fmt::format("no number of stages is enough; {}tensor shares them out further", w.flags)
                      : fmt::format("{} stages are enough", enough)));
}

role_deployment by_sheet(const options& o, const role_wish& w, const model_config& config, const plan::machine_kind& m,
                         double bytes) {
  check_ranks(m, w);
  const topology split(w.pipeline, w.tensor);
  try {
    (void)part_of(config, {.split = split});
  } catch (const config_error& e) {
    throw config_error(w.flags + e.what());
  }
  const plan::roofline sheet(
      config, bytes, m.gpu,
      {.ranks = w.tensor, .link = m.link_bytes_per_second, .arithmetic = o.arithmetic, .bandwidth = o.bandwidth});
  auto out = begun(o, w);
  auto& r = out.each;
  r.what = std::make_shared<sheet_price>(sheet, config.layers, split);
  r.row_bytes = static_cast<std::uint32_t>(std::ceil(4. * config.hidden / scale));
  r.max_sequence = config.max_positions;
  r.by_layers = w.role == cluster::worker_role::prefill;
  const double bytes_a_stage = (1 - o.reserve) * w.tensor * m.gpu.memory_bytes;
  const auto blocks = static_cast<std::uint32_t>(room(o, config, sheet, w.pipeline, bytes_a_stage));
  if (blocks < 1) no_room(o, w, config, sheet, bytes_a_stage);
  if (w.kv_blocks && *w.kv_blocks > blocks)
    throw config_error(fmt::format("{}kv-blocks: {}; there is room for {}", w.flags, *w.kv_blocks, blocks));
  r.engine.kv_blocks = w.kv_blocks.value_or(blocks);
  take_turns(o, w, out, [&](std::uint32_t s) {
    const double each = o.swap_bandwidth.value_or(static_cast<float>(m.gpu.pcie_bytes_per_second));
    return each * w.tensor / (topology(w.pipeline).layers(config.layers, s).count * sheet.kv_bytes());
  });
  constexpr float loaded = 2e9;  // bytes a second
  for (std::uint32_t s = 0; s < w.pipeline && !o.repair; ++s)
    r.repair_seconds[s] = weights_of(config, sheet, w.pipeline, s) / o.load_bandwidth.value_or(loaded);
  return out;
}

deployment by_sheet(const options& o) {
  const auto config = load_config(o.model);
  const auto m = plan::read_machine(o.cluster, o.machine);
  const double bytes = o.dtype == "f32" ? 4 : 2;
  deployment d;
  d.row_bytes = 4. * config.hidden;  // they are floats, whatever the weights are
  d.network = link_of(m.network_bytes_per_second, m.network_seconds);
  d.inside = link_of(m.link_bytes_per_second, 2e-6);
  const auto wishes = wishes_of(o);
  std::vector<role_deployment> all;
  for (auto& w : wishes) all.push_back(by_sheet(o, w, config, m, bytes));
  d.machines = place_on(m.gpus, all, o.pairs);
  check_machines(m, all, wishes, d.machines, o.pairs);
  d.price_per_hour = d.machines * m.price_per_hour;
  return of_roles(std::move(all),
                  {.layers = config.layers, .row_bytes = 2. * config.kv_heads * config.head_dim * bytes}, std::move(d));
}

deployment by_profile(const options& o) {
  const auto p = fit::read_profile(o.profile);
  if (o.workers_a_machine > p.prompts_beside.size())
    throw config_error(
        fmt::format("--workers-a-machine: {}, and {} says what no more than {} take beside each other; cokv fit "
                    "--workers {} measures them",
                    o.workers_a_machine, o.profile, p.prompts_beside.size(), o.workers_a_machine));
  if (o.prefill_replicas && p.kv_bytes == 0)
    throw config_error(
        fmt::format("--profile: {} does not say how many bytes KV has (kv_bytes), which has to get from "
                    "--prefill-replicas to the others; cokv fit does",
                    o.profile));
  return deployment_of(o, p, handed_on(o, p));
}

deployment priced(const options& o) {
  if (!o.profile.empty()) return by_profile(o);
  if (o.stage_prompt) return of_fixed_times(o);
  if (o.model.empty() || o.cluster.empty())
    throw config_error(
        "--model and --cluster say what a step takes, or --profile, or --stage-prompt and --stage-token");
  return by_sheet(o);
}

}  // namespace

// Workers of one thread each, say, on machines with cores for one or several of them.
deployment deployment_of(const options& o, const fit::profile& p, const hops& handed_on) {
  deployment d;
  d.row_bytes = 4. * p.hidden;
  d.network = d.inside = link_of(p.link_bytes_per_second, p.link_seconds);
  d.shares_cores = o.workers_a_machine > 1;
  std::vector<role_deployment> all;
  for (auto& w : wishes_of(o)) {
    if (w.tensor > 1) throw config_error(w.flags + "tensor: a profile is of whole layers");
    all.push_back(begun(o, w));
    auto& r = all.back().each;
    try {
      r.split.check(p.layers);
    } catch (const config_error&) {
      throw config_error(
          fmt::format("{}pipeline: {} stages of {} layers; at most one a layer", w.flags, w.pipeline, p.layers));
    }
    r.row_bytes = static_cast<std::uint32_t>(std::ceil(d.row_bytes / scale));
    r.max_sequence = p.max_positions;
    r.engine.kv_blocks = w.kv_blocks.value_or(1024);
    r.by_layers = w.role == cluster::worker_role::prefill;
    r.what = std::make_shared<profile_price>(p, r.split, handed_on);
    if (o.swap_blocks && p.kv_bytes == 0)
      throw config_error(fmt::format("--swap-blocks: {} does not say how many bytes KV has (kv_bytes)", o.profile));
    take_turns(o, w, all.back(), [&](std::uint32_t s) {
      const double rate = o.swap_bandwidth.value_or(static_cast<float>(p.copy_bytes_per_second));
      return rate / (1. * r.split.layers(p.layers, s).count * p.kv_bytes);
    });
  }
  d.machines = place_on(o.workers_a_machine, all);
  return of_roles(std::move(all), {.layers = p.layers, .row_bytes = 1. * p.kv_bytes}, std::move(d));
}

double detect_seconds(const options& o) { return o.detect.value_or(5); }

deployment decoding_alone(deployment d) {
  auto& answers = d.answers.each;
  answers.name = "decode", answers.role = cluster::worker_role::decode;
  answers.kv = {.layers = d.answers.pipeline};
  answers.kv.network = answers.kv.inside = real(link_of(1e15, 0));
  d.prompts = role_deployment{};
  d.prompts->each = {.name = "prefill",
                     .role = cluster::worker_role::prefill,
                     .what = std::make_shared<fixed_price>(0, 0),
                     .max_sequence = answers.max_sequence,
                     .engine = answers.engine,
                     .first_device = static_cast<std::uint64_t>(d.answers.stages()),
                     .kv = answers.kv};
  d.prompts->each.engine.microbatches = 0;
  return d;
}

deployment deployment_of(const options& o) {
  if (o.stage_prompt.has_value() != o.stage_token.has_value())
    throw config_error(fmt::format("{}: goes with {}", o.stage_prompt ? "--stage-prompt" : "--stage-token",
                                   o.stage_prompt ? "--stage-token" : "--stage-prompt"));
  check_roles(o);
  auto failures = failures_of(o);
  if (o.microbatches && o.pipeline == 1) throw config_error("--microbatches: is for --pipeline of 2 stages or more");
  if (o.workers_a_machine > 1 && o.profile.empty())
    throw config_error("--workers-a-machine: is for --profile, which says what they take beside each other");
  auto d = priced(o);
  d.failures = std::move(failures);
  return d;
}

}  // namespace cokv::simulate
