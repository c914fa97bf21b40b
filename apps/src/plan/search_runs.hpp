// The runs of a search: of a placement, of one of its phases alone, and without load.
#pragma once

#include "plan/search.hpp"
#include "simulate/deployment.hpp"
#include "simulate/outcome.hpp"

namespace cokv::plan {

// What is run of a placement: what computes prompts, or decodes, as if the other took no time; or all of it.
enum class phase { prompts, answers, whole };

class search_runs {
 public:
  explicit search_runs(const search_problem& p);

  // Throws config_error: it can't be, and why.
  simulate::deployment made(phase what, const placement& where) const;
  run_figures at(phase what, const placement& where, const simulate::deployment& d, double rate);
  // Requests one behind the other; nothing where enough of them meet the bounds.
  std::optional<nearest_miss> miss_without_load(phase what, const placement& where, const simulate::deployment& d);

  const workload::slo& bounds() const noexcept { return bounds_; }
  std::size_t runs() const noexcept { return runs_; }
  std::size_t events() const noexcept { return events_; }

 private:
  simulate::options options(phase what, const placement& where, double rate) const;
  bool too_much(const simulate::options& o, const simulate::deployment& d) const;

  const search_problem& p_;
  workload::slo bounds_;
  std::size_t runs_ = 0, events_ = 0;
};

}  // namespace cokv::plan
