#include "plan/search_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <cmath>
#include <set>

namespace cokv::plan {
namespace {

namespace json = boost::json;

std::string text(const shape& s) { return fmt::format("{} x {}", s.pipeline, s.tensor); }

double price_a_million(const machine_kind& m, const found_placement& f) {
  const double a_gpu = m.price_per_hour / m.gpus / 3600;
  const double tokens = static_cast<double>(f.at.told.output_tokens) / std::max<std::size_t>(1, f.at.told.answered);
  return a_gpu * f.where.gpus() / (f.at.rate * std::max(1., tokens)) * 1e6;
}

std::string quoted(const std::string& word) {
  const bool plain = std::ranges::all_of(word, [](unsigned char c) {
    return std::isalnum(c) || std::string_view("-_./:+=,@%").find(c) != std::string::npos;
  });
  if (plain && !word.empty()) return word;
  std::string out = "'";
  for (char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

void print_phase(std::ostream& out, const char* name, const tried_phase& all) {
  const auto* best = all.best();
  std::size_t others = 0;
  for (auto& s : all.shapes) {
    others += s.why_not.empty() && s.a_gpu.found == 0;
    if (s.a_gpu.found == 0) continue;
    const auto& t = s.good.told;
    out << fmt::format("  {:<10}{:>8}{:>7}{:>13.3f}{:>10.4f}{:>8.1f} %{:>11.1f}{:>11.1f}   {}{}\n", name, text(s.what),
                       s.what.gpus(), s.good.rate, s.a_gpu.found, 100 * s.good.share, t.ttft.p90, t.tpot.p90,
                       to_string(s.bad.binds), &s == best ? "  <" : "");
  }
  if (!best) out << fmt::format("  {:<10}none\n", name);
  if (best && others > 0) out << fmt::format("  {:<10}{} other shapes carry no more a GPU\n", name, others);
}

// Each text once, with the first shape that it is of.
void print_impossible(std::ostream& out, const char* name, const tried_phase& all) {
  std::set<std::string> told;
  for (auto& s : all.shapes)
    if (!s.why_not.empty() && told.insert(s.why_not).second)
      out << fmt::format("  {:<10}{:>8}  can't be: {}\n", name, text(s.what), s.why_not);
}

void print_role(std::ostream& out, const char* name, std::uint32_t replicas, const shape& s) {
  out << fmt::format("  {:<10}{} replica{} of {} stage{} of {} GPU{}\n", name, replicas, replicas == 1 ? "" : "s",
                     s.pipeline, s.pipeline == 1 ? "" : "s", s.tensor, s.tensor == 1 ? "" : "s");
}

void print_placement(std::ostream& out, const search_problem& p, const machine_kind& m, const found_placement& f) {
  const auto& w = f.where;
  if (w.apart()) print_role(out, "prompts", w.prompt_replicas, w.prompts);
  print_role(out, w.apart() ? "answers" : "both", w.answer_replicas, w.answers);
  const auto& t = f.at.told;
  out << fmt::format("  {} GPUs{}: {:.3f} requests/s, {:.4f} a GPU, {:.1f} % within the bounds; {} binds\n", w.gpus(),
                     !w.apart() ? ""
                     : w.pairs  ? ", stage by stage on one machine"
                                : ", anywhere",
                     f.at.rate, f.at.rate / w.gpus(), 100 * f.at.share, to_string(f.above.binds));
  out << fmt::format("  TTFT {:.1f} ms (p50), {:.1f} (p90); TPOT {:.1f}, {:.1f}", t.ttft.p50, t.ttft.p90, t.tpot.p50,
                     t.tpot.p90);
  if (m.price_per_hour > 0) out << fmt::format("; {:.4g} a million tokens of answers", price_a_million(m, f));
  if (f.times > 1) out << fmt::format("; {} times in the cluster, {:.1f} requests/s", f.times, f.times * f.at.rate);
  out << fmt::format("\n  {}\n", command_line(p, w, f.at.rate));
}

json::object to_json(const shape& s) { return {{"pipeline", s.pipeline}, {"tensor", s.tensor}, {"gpus", s.gpus()}}; }

json::object to_json(const run_figures& r) {
  json::object out{{"requests_per_s", r.rate}, {"attainment", r.share}, {"misses", to_string(r.binds)}};
  if (r.told.asked == 0) return out;
  out["requests"] = r.told.asked;
  for (auto& [name, f] : {std::pair{"ttft_ms", &r.told.ttft}, {"tpot_ms", &r.told.tpot}})
    out[name] = {{"mean", f->mean}, {"p50", f->p50}, {"p90", f->p90}, {"p99", f->p99}};
  return out;
}

json::array to_json(const tried_phase& all) {
  json::array out;
  for (auto& s : all.shapes) {
    auto one = to_json(s.what);
    if (!s.why_not.empty()) {
      one["why_not"] = s.why_not;
    } else {
      if (s.a_gpu.found > 0) one["requests_per_gpu_s"] = s.a_gpu.found, one["at"] = to_json(s.good);
      if (s.a_gpu.fails > 0) one["too_much_per_gpu_s"] = s.a_gpu.fails;
      if (s.bad.rate > 0) one["too_much"] = to_json(s.bad);
    }
    out.push_back(std::move(one));
  }
  return out;
}

json::value to_json(const search_problem& p, const machine_kind& m, const std::optional<found_placement>& f) {
  if (!f) return nullptr;
  const auto& w = f->where;
  json::object out{{"gpus", w.gpus()}};
  if (w.apart()) {
    out["prompts"] = to_json(w.prompts), out["prompt_replicas"] = w.prompt_replicas;
    out["affinity"] = w.pairs ? "stage" : "none";
  }
  out["answers"] = to_json(w.answers), out["replicas"] = w.answer_replicas;
  out["requests_per_s"] = f->at.rate, out["requests_per_gpu_s"] = f->at.rate / w.gpus();
  out["times"] = f->times, out["at"] = to_json(f->at), out["binds"] = to_string(f->above.binds);
  if (m.price_per_hour > 0) out["price_a_million_tokens"] = price_a_million(m, *f);
  out["command"] = command_line(p, w, f->at.rate);
  return out;
}

}  // namespace

std::string command_line(const search_problem& p, const placement& where, double rate) {
  const auto o = options_of(p, where, rate);
  const simulate::options usual;
  std::string out = "cokv simulate";
  const auto add = [&](const char* flag, const auto& value) {
    out += fmt::format(" {} {}", flag, quoted(fmt::format("{}", value)));
  };
  const auto add_unusual = [&](const char* flag, const auto& value, const auto& as_usual) {
    if (value != as_usual) add(flag, value);
  };
  if (o.stage_prompt) {
    add("--stage-prompt", *o.stage_prompt), add("--stage-token", *o.stage_token);
  } else {
    add("--model", o.model), add("--cluster", o.cluster);
    add_unusual("--machine", o.machine, usual.machine);
    add_unusual("--dtype", o.dtype, usual.dtype);
    add_unusual("--arithmetic", o.arithmetic, usual.arithmetic);
    add_unusual("--bandwidth", o.bandwidth, usual.bandwidth);
    add_unusual("--reserve", o.reserve, usual.reserve);
  }
  if (where.apart()) {
    add("--prefill-replicas", where.prompt_replicas);
    add_unusual("--prefill-pipeline", where.prompts.pipeline, 1u);
    add_unusual("--prefill-tensor", where.prompts.tensor, 1u);
  }
  add("--replicas", where.answer_replicas);
  add_unusual("--pipeline", where.answers.pipeline, 1u);
  add_unusual("--tensor", where.answers.tensor, 1u);
  if (where.pairs) out += " --pairs";
  add_unusual("--max-batched-tokens", o.max_batched_tokens, usual.max_batched_tokens);
  add_unusual("--max-running", o.max_running, usual.max_running);
  add("--lengths", o.load.lengths);
  if (o.load.max_prompt) add("--max-prompt", *o.load.max_prompt);
  if (o.load.max_output) add("--max-output", *o.load.max_output);
  add_unusual("--arrivals", o.load.arrivals, usual.load.arrivals);
  add("--rate", o.load.rate), add("--duration", *o.load.seconds);
  add_unusual("--seed", o.load.seed, usual.load.seed);
  add("--slo-ttft", *o.slo_ttft), add("--slo-tpot", *o.slo_tpot);
  return out;
}

std::string why_not_apart(const search_problem& p, const machine_kind& m, const search_answer& a) {
  if (p.gpus < 2) return "GPUs bind: prompts and answers need one each, and there is 1";
  for (auto& [phase, what] : {std::pair{&a.prompts, "prompts"}, {&a.answers, "answers"}})
    if (phase->miss)
      return fmt::format(
          "{} binds: {} take {:.4g} ms even without load ({:g} %, {} stages of {} GPUs), not {:g}; --slo-{} {:.4g} can "
          "be met",
          to_string(phase->miss->binds), what, phase->miss->ms, 100 * p.base.attainment, phase->miss->what.pipeline,
          phase->miss->what.tensor, phase->miss->binds == binding::ttft ? *p.base.slo_ttft : *p.base.slo_tpot,
          phase->miss->binds == binding::ttft ? "ttft" : "tpot", std::ceil(phase->miss->ms * 10) / 10);
  return fmt::format("{} machines {} have no room for both", m.count, m.name);
}

void print(std::ostream& out, const search_problem& p, const machine_kind& m, const search_answer& a) {
  out << fmt::format(
      "TTFT <= {:g} ms and TPOT <= {:g} ms for {:g} % of the requests; {} GPUs, {} a machine, {} a replica at most\n\n"
      "  {:<10}{:>8}{:>7}{:>13}{:>10}{:>10}{:>11}{:>11}   {}\n",
      *p.base.slo_ttft, *p.base.slo_tpot, 100 * p.base.attainment, p.gpus, p.machine_gpus, p.replica_gpus, "alone",
      "stages x", "GPUs", "requests/s", "a GPU", "within", "TTFT p90", "TPOT p90", "binds");
  print_phase(out, "prompts", a.prompts);
  print_phase(out, "answers", a.answers);
  print_phase(out, "both", a.both);
  out << '\n';
  print_impossible(out, "prompts", a.prompts);
  print_impossible(out, "answers", a.answers);
  const auto tell = [&](const char* name, const std::optional<found_placement>& f) {
    if (!f) return;
    out << '\n' << name << '\n';
    print_placement(out, p, m, *f);
  };
  tell("Prompts apart from answers", a.apart);
  tell("Together", a.together);
  if (p.rate) {
    tell(fmt::format("{:g} requests/s, apart", *p.rate).c_str(), a.carries_apart);
    tell(fmt::format("{:g} requests/s, together", *p.rate).c_str(), a.carries_together);
  }
  if (!a.apart) out << "\nNot apart: " << why_not_apart(p, m, a) << '\n';
  if (a.apart && a.together)
    out << fmt::format("\nApart a GPU carries {:.2f} times as much as together\n",
                       a.apart->at.rate / a.apart->where.gpus() * a.together->where.gpus() / a.together->at.rate);
}

json::object to_json(const search_problem& p, const machine_kind& m, const search_answer& a) {
  return {{"slo", {{"ttft_ms", *p.base.slo_ttft}, {"tpot_ms", *p.base.slo_tpot}, {"attainment", p.base.attainment}}},
          {"gpus", p.gpus},
          {"machine_gpus", p.machine_gpus},
          {"replica_gpus", p.replica_gpus},
          {"prompts", to_json(a.prompts)},
          {"answers", to_json(a.answers)},
          {"both", to_json(a.both)},
          {"apart", to_json(p, m, a.apart)},
          {"together", to_json(p, m, a.together)},
          {"carries_apart", to_json(p, m, a.carries_apart)},
          {"carries_together", to_json(p, m, a.carries_together)},
          {"runs", a.runs},
          {"events", a.events}};
}

}  // namespace cokv::plan
