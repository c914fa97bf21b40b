#include "simulate/figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <map>

namespace cokv::simulate {
namespace {

namespace json = boost::json;
using cluster::worker_role;

struct share {
  double least = 1, sum = 0, most = 0;
  std::size_t count = 0;
  void add(double v) { least = std::min(least, v), most = std::max(most, v), sum += v, ++count; }
  double mean() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
};

std::string name_of(const stage_figures& f) {
  return f.role == worker_role::both ? std::to_string(f.stage)
                                     : fmt::format("{} {}", cluster::to_string(f.role), f.stage);
}

void print_role(std::ostream& out, const role_deployment& r, const outcome& got) {
  for (std::uint32_t s = 0; s < r.pipeline; ++s) {
    share busy, bubbles, sending;
    std::string name;
    for (auto& f : got.stages)
      if (f.stage == s && f.role == r.each.role) {
        name = name_of(f);
        busy.add(got.utilisation(f)), bubbles.add(f.bubble);
        sending.add(got.makespan > 0 ? f.sending / got.makespan : 0);
      }
    out << fmt::format("{:<12}{:>8.1f} %{:>10.1f} %{:>10.1f} %{:>10.1f} %", name, 100 * busy.least, 100 * busy.mean(),
                       100 * busy.most, 100 * bubbles.mean());
    if (r.each.role == worker_role::prefill) out << fmt::format("{:>10.1f} %", 100 * sending.mean());
    out << '\n';
  }
}

workload::figures of(const outcome& got, double prompt_journey::* what) {
  std::vector<double> all;
  for (std::size_t i = 0; i < got.asked.journeys.size(); ++i)
    if (got.asked.records[i].answered()) all.push_back(got.asked.journeys[i].*what);
  return workload::figures_of(std::move(all));
}

json::object to_json(const workload::figures& f) {
  return {{"count", f.count}, {"mean", f.mean}, {"p50", f.p50}, {"p90", f.p90}, {"p99", f.p99}, {"max", f.most}};
}

constexpr std::pair<const char*, double prompt_journey::*> parts[] = {
    {"room", &prompt_journey::room_ms}, {"prompt", &prompt_journey::prompt_ms}, {"kv_wait", &prompt_journey::kv_ms}};

}  // namespace

void print_stages(std::ostream& out, const deployment& d, const outcome& got) {
  out << fmt::format("\n{:<12}{:>10}{:>12}{:>12}{:>12}", "stage", "busy least", "mean", "most", "bubbles");
  out << (d.prompts ? "    KV going\n" : "\n");
  if (d.prompts) print_role(out, *d.prompts, got);
  print_role(out, d.answers, got);
  if (!d.prompts || d.row_bytes == 0) return;
  std::map<std::string, const stage_figures*> hosts;
  for (auto& f : got.stages) hosts[f.host] = &f;
  std::map<std::pair<std::uint32_t, std::uint32_t>, double> kv;  // from a stage to another, over all replicas
  for (auto& l : got.links)
    if (l.kv) kv[{hosts.at(l.from)->stage, hosts.at(l.to)->stage}] += l.bytes;
  out << '\n';
  for (auto& [ends, bytes] : kv)
    out << fmt::format("KV from prefill {} to decode {}: {:.3f} GB\n", ends.first, ends.second, bytes / 1e9);
}

void print_journeys(std::ostream& out, const outcome& got) {
  if (got.asked.journeys.empty()) return;
  constexpr const char* names[] = {"room", "prompt", "KV wait"};
  for (std::size_t i = 0; i < std::size(parts); ++i) {
    const auto f = of(got, parts[i].second);
    out << fmt::format("{:<8}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}\n", names[i], f.mean, f.p50, f.p90, f.p99,
                       f.most);
  }
}

void add_to(json::object& told, const deployment& d, const outcome& got) {
  json::array stages, links;
  for (auto& f : got.stages) {
    const auto& role = f.role == worker_role::prefill ? *d.prompts : d.answers;
    const bool sends = f.stage + 1 < role.pipeline;
    json::object one{{"replica", f.replica},
                     {"stage", f.stage},
                     {"steps", f.steps},
                     {"busy_s", f.busy},
                     {"utilisation", got.utilisation(f)},
                     {"bubbles", f.bubble},
                     {"sent_bytes", sends ? d.row_bytes * static_cast<double>(f.rows) : 0.}};
    if (d.prompts) one["role"] = cluster::to_string(f.role);
    if (f.role == worker_role::prefill) one["kv_sending_s"] = f.sending;
    stages.push_back(std::move(one));
  }
  told["makespan_s"] = got.makespan;
  told["stages"] = std::move(stages);
  told["kv_blocks"] = d.answers.each.engine.kv_blocks;
  told["preemptions"] = got.counts.preemptions;
  if (!d.answers.each.swap_tokens_per_second.empty()) {
    told["swapped_in_tokens"] = got.counts.swapped_in;  // at the first stages
    told["swapped_out_tokens"] = got.counts.swapped_out;
  }
  told["cost"] = d.price_per_hour * got.makespan / 3600;
  if (!d.prompts) return;
  told["prefill_kv_blocks"] = d.prompts->each.engine.kv_blocks;
  double kv_bytes = 0;
  for (auto& l : got.links) {
    links.push_back(json::object{{"from", l.from}, {"to", l.to}, {"bytes", l.bytes}, {"kv", l.kv}});
    if (l.kv) kv_bytes += l.bytes;
  }
  told["links"] = std::move(links);
  told["kv_bytes"] = kv_bytes;
  auto& summary = told["summary"].as_object();
  auto& requests = told["requests"].as_array();
  for (auto [name, what] : parts) {
    const auto key = std::string(name) + "_ms";
    summary[key] = to_json(of(got, what));
    for (std::size_t i = 0; i < requests.size(); ++i)
      if (got.asked.records[i].answered()) requests[i].as_object()[key] = got.asked.journeys[i].*what;
  }
}

std::string shape_text(const deployment& d) {
  const auto answers = fmt::format("{} x {} stages", d.answers.replicas, d.answers.pipeline);
  if (!d.prompts) return answers;
  return fmt::format("{} x {} stages for prompts, {} for answers", d.prompts->replicas, d.prompts->pipeline, answers);
}

}  // namespace cokv::simulate
