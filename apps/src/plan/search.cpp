#include "plan/search.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "plan/search_runs.hpp"
#include "plan/unit.hpp"

namespace cokv::plan {
namespace {

constexpr double from = 1;  // requests a second and GPU, where each search begins

// What may be worth a run. Requests a second and GPU: of its phases alone, and what is known to be too much for it (0: nothing is).
struct candidate {
  placement where;
  double likely = 0, bound = 0;
  binding binds = binding::nothing;  // of the phase that carries less
};

std::vector<shape> shapes_of(const search_problem& p) {
  std::vector<shape> all;
  const auto most = std::min({p.layers, p.replica_gpus, simulate::most_stages});
  for (std::uint32_t n = 1; n <= most; ++n)
    for (std::uint32_t m = 1; m <= p.machine_gpus; ++m)
      if (const shape s{n, m}; s.gpus() <= p.replica_gpus) all.push_back(s);
  // Of as many GPUs those of fewer stages first.
  std::ranges::sort(all, {}, [](const shape& s) { return std::pair(s.gpus(), s.pipeline); });
  return all;
}

// How often it finds room.
std::uint32_t times_there(const search_problem& p, const search_runs& runs, const placement& w) {
  std::uint32_t some = 1, many = p.gpus / w.gpus() + 1;
  while (many - some > 1) {
    const auto n = some + (many - some) / 2;
    auto all = w;
    all.prompt_replicas *= n, all.answer_replicas *= n;
    try {
      (void)runs.made(phase::whole, all);
      some = n;
    } catch (const config_error&) {
      many = n;
    }
  }
  return some;
}

class searcher {
 public:
  explicit searcher(const search_problem& p) : p_(p), runs_(p) {}
  search_answer run();

 private:
  tried_phase alone(phase what);
  contest_entry enter(goodput_contest& contest, phase what, const candidate& c, run_figures& good, run_figures& bad);
  std::vector<candidate> anywhere() const;
  std::vector<candidate> pairs() const;
  candidate beside(placement w, const tried_shape& prompts, const tried_shape& answers) const;
  void try_joint(std::vector<candidate> all);
  void try_neighbours();
  std::optional<found_placement> carried(std::vector<placement> all);

  const search_problem& p_;
  search_runs runs_;
  search_answer out_;
  goodput_contest joint_{from, 1};
  std::vector<placement> entered_;
};

// Each run says yes or no here, and is kept where it is the greatest that was good, or the least that was not.
contest_entry searcher::enter(goodput_contest& contest, phase what, const candidate& c, run_figures& good,
                              run_figures& bad) {
  const auto& where = c.where;
  const auto d = runs_.made(what, where);
  const auto share_at = [&](double rate) {
    if (c.bound > 0 && rate >= c.bound * where.gpus()) return 0.;
    auto now = runs_.at(what, where, d, rate);
    const bool enough = now.share >= p_.base.attainment;
    if (enough ? now.rate > good.rate : bad.rate == 0 || now.rate < bad.rate) (enough ? good : bad) = std::move(now);
    return enough ? 1. : 0.;
  };
  constexpr double nearly = 0.95;  // of what one phase alone carries
  return contest.enter(where.gpus(), share_at, nearly * c.likely);
}

tried_phase searcher::alone(phase what) {
  tried_phase out;
  goodput_contest contest(from, 1);
  for (auto& s : shapes_of(p_)) {
    auto& now = out.shapes.emplace_back(tried_shape{.what = s});
    const placement where{.answers = s};
    try {
      const auto d = runs_.made(what, where);
      if (!contest.best())
        if (const auto miss = runs_.miss_without_load(what, where, d)) {
          now.why_not = std::string(to_string(miss->binds)) + ": not met even without load";
          if (!out.miss || miss->ms < out.miss->ms) out.miss = miss;
          continue;
        }
      now.a_gpu = enter(contest, what, {.where = where}, now.good, now.bad);
    } catch (const config_error& e) {
      now.why_not = e.what();
    }
  }
  if (contest.best()) out.miss.reset();
  return out;
}

// What is too much for a phase alone is too much for both. Of several replicas it is not known: they even out what comes at once.
candidate searcher::beside(placement w, const tried_shape& prompts, const tried_shape& answers) const {
  const double p = w.prompt_gpus() * prompts.a_gpu.fails, a = w.answer_gpus() * answers.a_gpu.fails;
  candidate out{
      .where = w, .likely = std::min(p, a) / w.gpus(), .binds = p < a ? prompts.bad.binds : answers.bad.binds};
  for (auto [replicas, fails] : {std::pair{w.prompt_replicas, p}, {w.answer_replicas, a}})
    if (replicas == 1 && (out.bound == 0 || fails < out.bound * w.gpus())) out.bound = fails / w.gpus();
  return out;
}

std::vector<candidate> searcher::anywhere() const {
  std::vector<candidate> all;
  for (auto& p : out_.prompts.shapes)
    for (auto& a : out_.answers.shapes) {
      if (p.a_gpu.found == 0 || a.a_gpu.found == 0) continue;
      // Of the best of each phase what carries most; of others what nearly does, with fewer GPUs.
      const bool best = &p == out_.prompts.best() && &a == out_.answers.best();
      const auto u = unit_of({p.what.gpus(), p.good.rate}, {a.what.gpus(), a.good.rate}, p_.gpus, best ? 1 : 1.05);
      if (!u) continue;
      all.push_back(beside({.prompts = p.what,
                            .answers = a.what,
                            .prompt_replicas = u->prompt_replicas,
                            .answer_replicas = u->answer_replicas},
                           p, a));
    }
  return all;
}

// Of one stage they lie on one machine wherever there is room.
std::vector<candidate> searcher::pairs() const {
  std::vector<candidate> all;
  for (auto& p : out_.prompts.shapes)
    for (auto& a : out_.answers.shapes) {
      const auto n = p.what.pipeline;
      if (n == 1 || n != a.what.pipeline || p.what.tensor + a.what.tensor > p_.machine_gpus) continue;
      if (!p.why_not.empty() || !a.why_not.empty() || p.what.gpus() + a.what.gpus() > p_.gpus) continue;
      all.push_back(beside({.prompts = p.what, .answers = a.what, .prompt_replicas = 1, .pairs = true}, p, a));
    }
  return all;
}

void searcher::try_joint(std::vector<candidate> all) {
  std::ranges::sort(all, {}, [](const candidate& c) {
    const auto& w = c.where;
    return std::tuple(w.gpus(), -c.likely, w.prompt_gpus(), w.pairs, w.prompts.pipeline, w.answers.pipeline);
  });
  for (auto& c : all) {
    if (std::ranges::find(entered_, c.where) != entered_.end()) continue;
    entered_.push_back(c.where);
    run_figures good, bad;
    try {
      const auto e = enter(joint_, phase::whole, c, good, bad);
      if (e.found == 0) continue;
      if (bad.rate == 0) bad.binds = c.binds;
      out_.apart = {c.where, e.found, std::move(good), std::move(bad)};
    } catch (const config_error&) {
      // It does not find room on these machines.
    }
  }
}

// A replica of a phase more or fewer, as long as that is better.
void searcher::try_neighbours() {
  const auto of = [](const tried_phase& all, const shape& s) -> const tried_shape& {
    return *std::ranges::find(all.shapes, s, &tried_shape::what);
  };
  placement last;
  while (out_.apart && !out_.apart->where.pairs && out_.apart->where != last) {
    last = out_.apart->where;
    std::vector<candidate> all;
    for (auto [prompts, answers] : {std::pair{1, 0}, {0, 1}, {-1, 0}, {0, -1}}) {
      auto w = last;
      w.prompt_replicas += prompts, w.answer_replicas += answers;
      if (w.prompt_replicas > 0 && w.answer_replicas > 0 && w.gpus() <= p_.gpus)
        all.push_back(beside(w, of(out_.prompts, w.prompts), of(out_.answers, w.answers)));
    }
    try_joint(std::move(all));
  }
}

// By their GPUs, and where they are too few with one replica more of what binds.
std::optional<found_placement> searcher::carried(std::vector<placement> all) {
  constexpr std::size_t most = 50;  // runs
  found_placement last;
  const double rate = *p_.rate;
  for (std::size_t i = 0; i < most && !all.empty(); ++i) {
    const auto least = std::ranges::min_element(all, {}, &placement::gpus);
    auto w = *least;
    all.erase(least);
    if (w.gpus() > p_.gpus) return std::nullopt;
    try {
      auto now = runs_.at(phase::whole, w, runs_.made(phase::whole, w), rate);
      if (now.share >= p_.base.attainment) {
        last.where = w, last.a_gpu = rate / w.gpus(), last.at = std::move(now);
        return last;
      }
      last.above = std::move(now);
    } catch (const config_error&) {
      continue;
    }
    if (w.pairs || last.above.binds == binding::ttft) w.prompt_replicas += w.apart();
    if (w.pairs || !w.apart() || last.above.binds != binding::ttft) ++w.answer_replicas;
    if (std::ranges::find(all, w) == all.end()) all.push_back(w);
  }
  return std::nullopt;
}

search_answer searcher::run() {
  out_.prompts = alone(phase::prompts);
  // What no phase alone can do, both can't.
  if (out_.prompts.best()) out_.answers = alone(phase::answers);
  if (out_.answers.best()) out_.both = alone(phase::whole);
  if (const auto* best = out_.both.best())
    out_.together = {{.answers = best->what}, best->a_gpu.found, best->good, best->bad};
  auto all = anywhere();
  std::ranges::move(pairs(), std::back_inserter(all));
  try_joint(std::move(all));
  try_neighbours();
  for (auto* f : {&out_.apart, &out_.together})
    if (*f) (*f)->times = times_there(p_, runs_, (*f)->where);
  if (p_.rate) {
    const auto times = [&](double rate) {
      return static_cast<std::uint32_t>(
          std::min(std::ceil(*p_.rate / rate - 1e-9), p_.gpus + 1.));  // too many are enough
    };
    std::vector<placement> apart, together;
    for (auto& p : out_.prompts.shapes)
      for (auto& a : out_.answers.shapes)
        if (p.a_gpu.found > 0 && a.a_gpu.found > 0)
          apart.push_back({.prompts = p.what,
                           .answers = a.what,
                           .prompt_replicas = times(p.good.rate),
                           .answer_replicas = times(a.good.rate)});
    if (out_.apart && out_.apart->where.pairs) {
      auto w = out_.apart->where;
      w.prompt_replicas = w.answer_replicas = times(out_.apart->at.rate);
      apart.push_back(w);
    }
    for (auto& s : out_.both.shapes)
      if (s.a_gpu.found > 0) together.push_back({.answers = s.what, .answer_replicas = times(s.good.rate)});
    out_.carries_apart = carried(std::move(apart));
    out_.carries_together = carried(std::move(together));
  }
  out_.runs = runs_.runs(), out_.events = runs_.events();
  return std::move(out_);
}

}  // namespace

const tried_shape* tried_phase::best() const noexcept {
  const tried_shape* best = nullptr;
  for (auto& s : shapes)
    if (s.a_gpu.found > 0 && (!best || s.a_gpu.found > best->a_gpu.found)) best = &s;
  return best;
}

search_answer search(const search_problem& p) { return searcher(p).run(); }

}  // namespace cokv::plan
