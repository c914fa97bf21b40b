#include "serve/router_metrics.hpp"

#include <map>

namespace cokv::serve {

void add_router_metrics(http::metrics& page, const cluster::members& workers, const cluster::remote_answers& answers) {
  page.add([&workers, &answers](http::scrape& s) {
    std::map<std::pair<std::string, std::string>, double> counted;
    for (const auto& [id, w] : workers.table().all()) {
      const std::string role(w.state == cluster::presence::unheard ? "unknown" : to_string(w.facts.role));
      ++counted[{role, w.leaving ? "leaving" : std::string(to_string(w.state))}];
    }
    for (const auto& [what, n] : counted)
      s.gauge("cokv_workers", "Workers by role and state", n, {{"role", what.first}, {"state", what.second}});
    s.gauge("cokv_requests_running", "Requests whose answers run elsewhere", static_cast<double>(answers.requests()));
    const char* moved = "Attempts that failed, after which a request went on elsewhere, by what failed";
    s.counter("cokv_moved_requests_total", moved, static_cast<double>(answers.prompts_moved()), {{"of", "prompt"}});
    s.counter("cokv_moved_requests_total", moved, static_cast<double>(answers.answers_moved()), {{"of", "answer"}});
    s.gauge("cokv_ring_epoch", "Of the ring in which decode workers keep copies of each other's answers; 0: none",
            static_cast<double>(workers.ring_epoch()));
    s.counter("cokv_resumed_answers_total", "Answers that went on from a copy of their KV at another worker",
              static_cast<double>(answers.answers_resumed()));
    s.counter("cokv_computed_again_tokens_total",
              "Tokens of those whose KV was computed again, for the copy was not as far",
              static_cast<double>(answers.computed_again()));
    s.counter("cokv_followed_answers_total",
              "Answers that were found where another router, or a request before, had begun them",
              static_cast<double>(answers.answers_followed()));
  });
}

}  // namespace cokv::serve
