// What a router's watchers are told of the past: what became of workers and answers, and how much KV went between whom.
//
//     router_watch watch(ex);
//     workers.on_change = [&](auto& w, auto change) { watch.note(w, change); };
//     answers.on_change = [&](auto& event) { watch.note(event); };
//     watch.links().at({prefill_url, decode_url}).bytes
//
// Belongs to one context.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "cluster/remote_answers.hpp"
#include "cluster/worker_table.hpp"
#include "view/journal.hpp"

namespace cokv::view {

class router_watch {
 public:
  struct traffic {
    std::uint64_t prompts = 0, bytes = 0;
    std::uint64_t turn = 0;  // of its last use, among all links
  };
  using pair = std::pair<std::string, std::string>;  // URLs: of who computed, of who decodes

  static constexpr std::size_t most_links = 1024;  // beyond, the one that was not used for longest is forgotten

  explicit router_watch(asio::any_io_executor ex) : events_(std::move(ex)) {}

  void note(const cluster::worker_table::worker& w, cluster::worker_change c);
  void note(const cluster::answer_event& e);

  journal& events() noexcept { return events_; }
  const journal& events() const noexcept { return events_; }
  const std::map<pair, traffic>& links() const noexcept { return links_; }

 private:
  journal events_;
  std::map<pair, traffic> links_;
  std::uint64_t turns_ = 0;
};

}  // namespace cokv::view
