#include "view/router_watch.hpp"

#include <algorithm>

namespace cokv::view {

void router_watch::note(const cluster::worker_table::worker& w, cluster::worker_change c) {
  using cluster::worker_change;
  switch (c) {
    case worker_change::came:
      return events_.add({.what = "came", .who = w.url, .why = std::string(to_string(w.facts.role))});
    case worker_change::died:
      return events_.add({.what = "died", .who = w.url, .why = std::string(to_string(w.facts.role))});
    case worker_change::replaced:
      return events_.add({.what = "replaced", .who = w.url, .why = std::string(to_string(w.facts.role))});
    case worker_change::misfit:
      return events_.add({.what = "misfit", .who = w.url, .why = w.wrong});
    case worker_change::none:
      break;
  }
}

void router_watch::note(const cluster::answer_event& e) {
  using cluster::answer_change;
  journal::entry told{.what = {}, .who = e.from, .to = e.to, .sequence = e.id, .amount = e.amount};
  switch (e.what) {
    case answer_change::sent: {
      const pair link{e.from, e.to};
      if (links_.size() >= most_links && !links_.contains(link))
        links_.erase(std::ranges::min_element(links_, {}, [](const auto& l) { return l.second.turn; }));
      auto& t = links_[link];
      t.turn = ++turns_;
      ++t.prompts;
      t.bytes += e.amount;
      return;
    }
    case answer_change::prompt_moved:
      told.what = "prompt_moved";
      break;
    case answer_change::answer_moved:
      told.what = "answer_moved";
      break;
    case answer_change::resumed:
      told.what = "resumed";
      break;
    case answer_change::followed:
      told.what = "followed";
  }
  events_.add(std::move(told));
}

}  // namespace cokv::view
