// Which of several has the highest goodput a GPU; of equals who has fewer GPUs. Pure.
//
//     goodput_contest contest(1, 0.9);
//     for (auto& one : all) contest.enter(one.gpus, [&](double rate) { return share_within_the_bounds(one, rate); });
//     print(contest.best()->found);
//
// Each one's goodput is the search's of load/goodput.hpp from the same rate a GPU, so that whose limits lie in the same 5 % have the
// same, and to be better is to be good at the rate that was too much for the best so far. That is all that most are tried at. Shares
// are taken to fall with the rate.
#pragma once

#include <functional>
#include <optional>

#include "load/goodput.hpp"

namespace cokv::plan {

// Requests a second and GPU.
struct contest_entry {
  double gpus = 0;
  double found = 0;  // 0: there is none, or it is known to be no better than another's
  double fails = 0;  // too much, the least that is known to be; 0: nothing is
};

class goodput_contest {
 public:
  // `attainment`: the share that is enough.
  goodput_contest(double from, double attainment) : from_(from), attainment_(attainment) {}

  // share_at(rate): of requests at so many a second, of all its GPUs together. `near`: where its goodput is likely to lie, not far
  // above; tried first, it spares what lies below.
  contest_entry enter(double gpus, const std::function<double(double)>& share_at, double near = 0) {
    contest_entry e{.gpus = gpus};
    double good = 0;
    const auto enough = [&](double a_gpu) {
      if (a_gpu <= good) return true;
      if (e.fails > 0 && a_gpu >= e.fails) return false;
      const bool yes = share_at(a_gpu * gpus) >= attainment_;
      (yes ? good : e.fails) = a_gpu;
      return yes;
    };
    if (best_ && !enough(gpus < best_->gpus ? best_->found : best_->fails)) return e;
    if (near > from_) {
      double first = from_;
      while (2 * first <= near) first *= 2;
      (void)enough(1.5 * first <= near ? 1.5 * first : first);  // both are the search's own
    }
    workload::goodput_search search(from_, attainment_);
    while (const auto rate = search.next()) search.tried(enough(*rate) ? 1 : 0);
    e.found = search.found();
    if (e.found > 0) best_ = e;
    return e;
  }
  const std::optional<contest_entry>& best() const noexcept { return best_; }

 private:
  double from_, attainment_;
  std::optional<contest_entry> best_;
};

}  // namespace cokv::plan
