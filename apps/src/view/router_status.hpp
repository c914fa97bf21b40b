// A router as GET /v1/status tells it: who is there, what is under way and where, who keeps whose copies, how much KV went
// between whom, and what happened lately.
//
//     json::object now = router_status({workers.table(), workers.ring(), answers.underway(most_sequences),
//                                       answers.requests(), totals, watch}, clock.now());
//
// | member    |                                                                                                       |
// |-----------|-------------------------------------------------------------------------------------------------------|
// | workers   | as in GET /v1/workers; heard_ms: since when nothing was heard; keepers: URLs of who keeps copies of   |
// |           | its answers; doing: sums that it said (worker_activity.hpp)                                            |
// | sequences | id, prefill, decode, prompt_tokens, told of most, attempt, moved, resumed; the oldest, at most 256     |
// | links     | from, to, prompts, bytes: KV of prompts since the start                                                |
// | totals    | prompts_moved, answers_moved, resumed, computed_again                                                  |
// | events    | number, at_ms, what, who, to, sequence, why, amount: the last 64                                       |
//
// A function of its arguments: it asks nobody.
#pragma once

#include <boost/json/object.hpp>
#include <vector>

#include "cluster/remote_answers.hpp"
#include "cluster/ring.hpp"
#include "cluster/worker_table.hpp"
#include "view/router_watch.hpp"

namespace cokv::view {

inline constexpr std::size_t most_sequences = 256;

struct answer_totals {
  std::uint64_t prompts_moved = 0, answers_moved = 0, resumed = 0, computed_again = 0;
};

struct router_now {
  const cluster::worker_table& workers;
  const cluster::ring_book& ring;
  std::vector<cluster::answer_view> sequences;
  std::size_t running = 0;
  answer_totals totals;
  const router_watch& watch;
};

boost::json::object router_status(const router_now& r, time_point now);

}  // namespace cokv::view
