#include "engines.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace cokv::detail {

void sim_engines::ask(user& who, int priority, std::vector<sim_engine*> needs) {
  const auto behind = std::find_if(waiting_.begin(), waiting_.end(), [&](auto& r) { return r.priority > priority; });
  waiting_.insert(behind, {&who, priority, std::move(needs)});
  serve();
}

void sim_engines::give_back(user& who) {
  std::erase_if(waiting_, [&](auto& r) { return r.who == &who; });
  for (auto* e : std::exchange(who.held_, {})) e->busy = false;
  serve();
}

void sim_engines::serve() {
  if (waiting_.empty()) return;
  std::set<const sim_engine*> spoken_for;
  std::vector<request> open, starting;
  for (auto& r : waiting_) {
    const bool free =
        std::none_of(r.needs.begin(), r.needs.end(), [&](auto* e) { return e->busy || spoken_for.contains(e); });
    spoken_for.insert(r.needs.begin(), r.needs.end());
    (free ? starting : open).push_back(std::move(r));
  }
  waiting_ = std::move(open);
  for (auto& r : starting) {
    for (auto* e : r.needs) e->busy = true;
    r.who->held_ = std::move(r.needs);
  }
  for (auto& r : starting) r.who->start();
}

}  // namespace cokv::detail
