#include "cluster/ring.hpp"

#include <algorithm>
#include <boost/json/array.hpp>

#include "cokv/runtime/error.hpp"

namespace cokv::cluster {
namespace json = boost::json;
json::object to_json(const ring_place& p) {
  json::array successors;
  for (auto& s : p.successors) successors.push_back({{"life", json::string(s.life)}, {"links", json_of(s.links)}});
  return {{"epoch", p.epoch}, {"replicas", p.replicas}, {"successors", std::move(successors)}};
}

parsed<ring_place> read_ring_place(const json::value& v) {
  fields f(v, "");
  ring_place p;
  p.epoch = f.number("epoch", most_epoch, 1);
  p.replicas = f.u32("replicas", most_replicas);
  f.list("successors", most_replicas, [&](const json::value& one) -> std::optional<std::string> {
    fields m(one, "successors");
    ring_member who{m.id("life"), m.texts("links", most_links, most_url_bytes)};
    if (auto wrong = m.end()) return wrong->message;
    p.successors.push_back(std::move(who));
    return std::nullopt;
  });
  if (p.successors.size() > p.replicas) f.refuse("successors", "are more than replicas");
  if (auto wrong = f.end()) return *wrong;
  return p;
}

json::object to_json(const lost_answer& l) { return {{"life", json::string(l.life)}, {"attempt", l.attempt}}; }

parsed<lost_answer> read_lost_answer(const json::value& v) {
  fields f(v, "lost");
  lost_answer l{f.id("life"), f.u32("attempt", most_attempts)};
  if (auto wrong = f.end()) return *wrong;
  return l;
}

ring_book::ring_book(std::uint32_t replicas) : replicas_(replicas) {
  if (replicas > most_replicas) throw config_error("replicas: at most " + std::to_string(most_replicas));
}

// The nearest first.
std::vector<ring_book::id> ring_book::behind(id of) const {
  std::vector<id> out;
  const auto at = here_.find(of);
  if (at == here_.end()) return out;
  for (auto i = at; out.size() < replicas_;) {
    if (++i == here_.end()) i = here_.begin();
    if (i == at) break;
    if (i->second.wire != at->second.wire) continue;
    out.push_back(i->first);
  }
  return out;
}

bool ring_book::stand(std::map<id, standing> here) {
  if (replicas_ == 0 || here == here_) return false;
  here_ = std::move(here);
  ++epoch_;
  for (auto& [one, who] : here_) holders_[one] = behind(one);
  return true;
}

void ring_book::heard(std::uint64_t epoch) {
  if (router_ > 0 && epoch >> ring_bits > router_) return;
  if (replicas_ > 0 && epoch > 0 && epoch >= epoch_ && epoch < most_epoch / 2) epoch_ = epoch + 1;
}

void ring_book::reign(std::uint64_t router_epoch) {
  router_ = router_epoch;
  if (replicas_ > 0) epoch_ = std::max(epoch_, router_epoch << ring_bits) + 1;
}

ring_place ring_book::place_of(id of, const std::function<std::vector<std::string>(id)>& links_of) const {
  ring_place p{.epoch = epoch_, .replicas = replicas_, .successors = {}};
  for (auto one : behind(of)) p.successors.push_back({here_.at(one).life, links_of(one)});
  return p;
}

std::vector<ring_book::id> ring_book::holders(id of) const {
  const auto found = holders_.find(of);
  return found == holders_.end() ? std::vector<id>() : found->second;
}

}  // namespace cokv::cluster
