#include "serve/router_metrics.hpp"

#include <map>

namespace cokv::serve {

void add_router_metrics(http::metrics& page, const cluster::worker_table& workers,
                        const cluster::remote_answers& answers) {
  page.add([&workers, &answers](http::scrape& s) {
    std::map<std::pair<std::string, std::string>, double> counted;
    for (const auto& [id, w] : workers.all()) {
      const std::string role(w.state == cluster::presence::unheard ? "unknown" : to_string(w.facts.role));
      ++counted[{role, w.leaving ? "leaving" : std::string(to_string(w.state))}];
    }
    for (const auto& [what, n] : counted)
      s.gauge("cokv_workers", "Workers by role and state", n, {{"role", what.first}, {"state", what.second}});
    s.gauge("cokv_requests_running", "Requests whose answers run elsewhere", static_cast<double>(answers.requests()));
    const char* moved = "Attempts that failed, after which a request went on elsewhere, by what failed";
    s.counter("cokv_moved_requests_total", moved, static_cast<double>(answers.prompts_moved()), {{"of", "prompt"}});
    s.counter("cokv_moved_requests_total", moved, static_cast<double>(answers.answers_moved()), {{"of", "answer"}});
  });
}

}  // namespace cokv::serve
