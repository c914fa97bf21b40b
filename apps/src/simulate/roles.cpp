#include "simulate/roles.hpp"

#include <fmt/format.h>

#include <cmath>

#include "cokv/runtime/error.hpp"

namespace cokv::simulate {

std::vector<role_wish> wishes_of(const options& o) {
  role_wish answers{.replicas = o.replicas, .pipeline = o.pipeline, .tensor = o.tensor, .kv_blocks = o.kv_blocks};
  if (!o.prefill_replicas) return {answers};
  answers.role = cluster::worker_role::decode;
  return {{.role = cluster::worker_role::prefill,
           .flags = "--prefill-",
           .replicas = *o.prefill_replicas,
           .pipeline = o.prefill_pipeline.value_or(1),
           .tensor = o.prefill_tensor.value_or(1),
           .kv_blocks = o.prefill_kv_blocks},
          answers};
}

std::uint32_t routers_of(const options& o) { return o.pairs ? o.replicas : o.routers; }

namespace {

void check_pairs(const options& o) {
  if (!o.prefill_replicas) throw config_error("--pairs: is for --prefill-replicas, each beside one that decodes");
  if (o.cluster.empty()) throw config_error("--pairs: is for --cluster, which says how many GPUs a machine has");
  if (*o.prefill_replicas != o.replicas)
    throw config_error(
        fmt::format("--pairs: {} that compute prompts and {} that decode are no pairs; --replicas {} are",
                    *o.prefill_replicas, o.replicas, *o.prefill_replicas));
  if (o.prefill_pipeline.value_or(1) != o.pipeline)
    throw config_error(fmt::format("--pairs: {} stages and {} can't lie side by side; --prefill-pipeline {} can",
                                   o.prefill_pipeline.value_or(1), o.pipeline, o.pipeline));
  if (o.routers > 1) throw config_error("--routers: each of --pairs has one of its own");
}

}  // namespace

void check_roles(const options& o) {
  for (auto& [given, flag] : {std::pair{o.prefill_pipeline.has_value(), "--prefill-pipeline"},
                              {o.prefill_tensor.has_value(), "--prefill-tensor"},
                              {o.prefill_kv_blocks.has_value(), "--prefill-kv-blocks"},
                              {o.stage_cache.has_value(), "--stage-cache"}})
    if (given && !o.prefill_replicas)
      throw config_error(fmt::format("{}: is for --prefill-replicas, which compute prompts for the others", flag));
  if (o.stage_cache && !o.stage_prompt)
    throw config_error("--stage-cache: goes with --stage-prompt and --stage-token; else KV takes what its bytes do");
  if (o.pairs) check_pairs(o);
  for (auto& w : wishes_of(o))
    if (o.routers > w.replicas)
      throw config_error(fmt::format("--routers: {} of them have no more than {} {} to share", o.routers, w.replicas,
                                     w.flags == "--" ? "replicas" : "prefill replicas"));
}

namespace {

double place_pairs(std::uint64_t gpus, role_deployment& prompts, role_deployment& answers) {
  const auto both = prompts.tensor + answers.tensor;
  if (both > gpus)
    throw config_error(fmt::format("--pairs: {} and {} GPUs of a stage are more than a machine has, {}", prompts.tensor,
                                   answers.tensor, gpus));
  prompts.each.machines = answers.each.machines = {.each = gpus / both};
  answers.each.first_device = static_cast<std::uint64_t>(prompts.stages());
  return std::ceil(prompts.stages() / static_cast<double>(gpus / both));
}

}  // namespace

// On machines of so many GPUs. Stages lie one behind the other: a machine's may be of several replicas, and of both roles.
double place_on(std::uint64_t gpus, std::vector<role_deployment>& all, bool pairs) {
  if (pairs) return place_pairs(gpus, all.front(), all.back());
  std::uint64_t first = 0, free = 0, devices = 0;  // GPUs of the first machine that others left
  for (auto& r : all) {
    const auto stages = static_cast<std::uint64_t>(r.stages());
    r.each.first_device = devices;
    devices += stages;
    auto& row = r.each.machines = {.first = first, .room = free / r.tensor, .each = gpus / r.tensor};
    if (free > 0 && row.room == 0) ++row.first;
    const auto behind = stages > row.room ? (stages - row.room - 1) % row.each + 1 : 0;  // of the last machine
    free = behind > 0 ? gpus - behind * r.tensor : free - stages * r.tensor;
    first = row.of(stages - 1) + (free == 0);
  }
  return static_cast<double>(first + (free > 0));
}

namespace {

// Of that role so many as there is room for, beside the other as it was asked for.
std::uint32_t feasible(const plan::machine_kind& m, std::vector<role_deployment> all, std::size_t role) {
  for (auto& n = all[role].replicas; n > 0; --n)
    if (place_on(m.gpus, all) <= m.count) return n;
  return 0;
}

}  // namespace

void check_machines(const plan::machine_kind& m, const std::vector<role_deployment>& all,
                    const std::vector<role_wish>& wishes, double machines, bool pairs) {
  if (machines <= m.count) return;
  if (pairs) {
    auto n = all;
    while (n[0].replicas > 0 && place_on(m.gpus, n, true) > m.count) n[1].replicas = --n[0].replicas;
    throw config_error(fmt::format(
        "--replicas: {} pairs of {} stages of {} and {} GPUs take {:.0f} machines {}, and there are {}: {} "
        "are feasible",
        all[0].replicas, all[0].pipeline, all[0].tensor, all[1].tensor, machines, m.name, m.count, n[0].replicas));
  }
  const auto last = all.size() - 1;
  const bool decoders = last == 0 || feasible(m, all, last) > 0;
  const auto which = decoders ? last : 0;
  const auto& r = all[which];
  std::string beside;
  if (last > 0)
    beside = fmt::format(" beside {} that {}", all[last - which].replicas, decoders ? "compute prompts" : "decode");
  throw config_error(
      fmt::format("{}replicas: {} of {} stages of {} GPUs{} take {:.0f} machines {}, and there are {}: {} "
                  "are feasible",
                  wishes[which].flags, r.replicas, r.pipeline, r.tensor, beside, machines, m.name, m.count,
                  feasible(m, all, which)));
}

}  // namespace cokv::simulate
