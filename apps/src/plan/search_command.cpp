#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <boost/json/serialize.hpp>
#include <cmath>
#include <ctime>

#include "checkpoint.hpp"
#include "cli/result_file.hpp"
#include "plan/cluster_file.hpp"
#include "plan/plan.hpp"
#include "plan/roofline.hpp"
#include "plan/search_report.hpp"
#include "simulate/quiet.hpp"

namespace cokv::plan {
namespace {

// What one copy of the model needs at least, and what a GPU has for it.
struct memory_need {
  double weights = 0, sequence = 0, gpu = 0;  // bytes; of the longest sequence
  std::uint32_t tokens = 0;
  double gpus() const { return std::ceil((weights + sequence) / gpu); }
};

memory_need need_of(const options& o, const model_config& c, const machine_kind& m, std::uint32_t tokens) {
  const roofline sheet(c, o.dtype == "f32" ? 4 : 2, m.gpu, {});
  return {c.layers * sheet.layer_bytes() + (c.tie_embeddings ? 1 : 2) * sheet.table_bytes(),
          c.layers * sheet.kv_bytes() * tokens, (1 - o.reserve) * m.gpu.memory_bytes, tokens};
}

std::uint32_t longest_sequence(const options& o, const model_config& c) {
  const auto all = workload::parse_lengths(o.load.lengths).value();
  const auto prompt = std::min(all.prompt.most, o.load.max_prompt.value_or(all.prompt.most)),
             output = std::min(all.output.most, o.load.max_output.value_or(all.output.most));
  if (prompt + output > c.max_positions)
    throw config_error(
        fmt::format("--lengths: prompts of up to {} tokens and answers of up to {} are more than the model's {}; "
                    "--max-prompt and --max-output cut them",
                    prompt, output, c.max_positions));
  return prompt + output;
}

search_problem problem_of(const options& o, const model_config& config, const machine_kind& m,
                          const memory_need& need) {
  search_problem p{.gpus = m.count * m.gpus, .machine_gpus = m.gpus, .layers = config.layers};
  p.base.model = o.model, p.base.cluster = o.cluster, p.base.machine = o.machine;
  p.base.dtype = o.dtype, p.base.arithmetic = o.arithmetic, p.base.bandwidth = o.bandwidth, p.base.reserve = o.reserve;
  p.base.max_batched_tokens = o.max_batched_tokens, p.base.max_running = o.max_running;
  p.base.load = o.load;
  p.base.slo_ttft = o.slo_ttft, p.base.slo_tpot = o.slo_tpot, p.base.attainment = o.attainment;
  p.seconds = o.load.seconds.value_or(p.seconds);
  if (o.rate) p.rate = *o.rate;
  const auto usual = std::max<double>(m.gpus, 2 * need.gpus());
  p.replica_gpus = static_cast<std::uint32_t>(std::min<double>(p.gpus, o.max_gpus ? *o.max_gpus : usual));
  return p;
}

bool finds_room(const tried_phase& all) {
  return all.best() || all.miss || std::ranges::any_of(all.shapes, [](auto& s) { return s.why_not.empty(); });
}

// One line: what binds, and what would be feasible. Empty: nothing is wrong.
std::string why_not(const search_problem& p, const machine_kind& m, const memory_need& need, const search_answer& a) {
  if (!a.apart && !a.together) {
    if (finds_room(a.prompts) && (!a.prompts.best() || finds_room(a.answers))) return why_not_apart(p, m, a);
    return fmt::format(
        "memory binds: weights take {:.1f} GB and KV of a sequence of {} tokens {:.2g} GB, and the {} GPUs that a "
        "replica may have {:.1f} GB for both; {} GPUs would do{}",
        need.weights / 1e9, need.tokens, need.sequence / 1e9, p.replica_gpus, p.replica_gpus * need.gpu / 1e9,
        std::max<double>(need.gpus(), p.replica_gpus + 1), p.replica_gpus < p.gpus ? " (--max-gpus)" : "");
  }
  if (!p.rate || a.carries_apart || a.carries_together) return {};
  const auto& best = !a.together || (a.apart && a.apart->a_gpu > a.together->a_gpu) ? *a.apart : *a.together;
  return fmt::format(
      "GPUs bind: on {} no placement was found to carry {:g} requests/s within the bounds; a GPU carries {:.3g}, so "
      "that {:.0f} would",
      p.gpus, *p.rate, best.a_gpu, std::ceil(*p.rate / best.at.rate) * best.where.gpus());
}

}  // namespace

int run_search(const options& o, cli::streams io) {
  cli::result_file file("--json", o.json);
  const auto config = load_config(o.model);
  const auto m = read_machine(o.cluster, o.machine);
  const auto need = need_of(o, config, m, longest_sequence(o, config));
  const auto p = problem_of(o, config, m, need);
  const auto begun = std::clock();
  const auto found = [&] {
    simulate::only_errors quiet;
    return search(p);
  }();
  // On the log: no two searches take the same.
  spdlog::info("{} runs, {} events, {:.1f} s of processor time", found.runs, found.events,
               static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC);
  io.out << fmt::format("{} on {} machines {} of {} x {}\n", config.architecture, m.count, m.name, m.gpus,
                        m.gpu.name.size() > 16 ? "GPU" : m.gpu.name);
  print(io.out, p, m, found);
  const auto why = why_not(p, m, need, found);
  if (file.wanted()) {
    auto told = to_json(p, m, found);
    if (!why.empty()) told["why"] = why;
    file.write(boost::json::serialize(told) + '\n');
  }
  if (why.empty()) return 0;
  io.err << "cokv plan: no placement: " << why << '\n';
  return 1;
}

}  // namespace cokv::plan
