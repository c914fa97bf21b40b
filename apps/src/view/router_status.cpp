#include "view/router_status.hpp"

#include <boost/json/array.hpp>

#include "cluster/members_routes.hpp"

namespace cokv::view {
namespace {

namespace json = boost::json;

json::object told(cluster::worker_table::id id, const cluster::worker_table::worker& w, const router_now& r,
                  time_point now) {
  auto out = cluster::to_json(w);
  if (w.state == cluster::presence::unheard) return out;
  out["heard_ms"] = std::chrono::duration_cast<std::chrono::milliseconds>(now - w.heard).count();
  json::array keepers;
  for (auto holder : r.ring.holders(id))
    if (const auto* h = r.workers.find(holder)) keepers.push_back(json::string(h->url));
  out["keepers"] = std::move(keepers);
  if (w.facts.doing) out["doing"] = to_json(*w.facts.doing);
  return out;
}

json::object told(const cluster::answer_view& a) {
  return {{"id", json::string(a.id)},
          {"prefill", json::string(a.prefill)},
          {"decode", json::string(a.decode)},
          {"prompt_tokens", a.prompt_tokens},
          {"told", a.told},
          {"most", a.most},
          {"attempt", a.attempt},
          {"moved", a.moved},
          {"resumed", a.resumed}};
}

}  // namespace

json::object router_status(const router_now& r, time_point now) {
  json::array workers, sequences, links;
  for (const auto& [id, w] : r.workers.all()) workers.push_back(told(id, w, r, now));
  for (const auto& a : r.sequences) sequences.push_back(told(a));
  for (const auto& [link, t] : r.watch.links())
    links.push_back({{"from", json::string(link.first)},
                     {"to", json::string(link.second)},
                     {"prompts", t.prompts},
                     {"bytes", t.bytes}});
  return {{"role", "router"},
          {"running", r.running},
          {"ring", {{"epoch", r.ring.epoch()}, {"replicas", r.ring.replicas()}}},
          {"workers", std::move(workers)},
          {"sequences", std::move(sequences)},
          {"links", std::move(links)},
          {"totals",
           {{"prompts_moved", r.totals.prompts_moved},
            {"answers_moved", r.totals.answers_moved},
            {"resumed", r.totals.resumed},
            {"computed_again", r.totals.computed_again}}},
          {"events", to_json(r.watch.events().all())}};
}

}  // namespace cokv::view
