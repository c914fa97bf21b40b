#include "route/leg_finder.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace cokv::detail {
namespace {

index_range common(index_range a, index_range b) {
  auto first = std::max(a.first, b.first);
  auto end = std::min(a.end(), b.end());
  return {first, end > first ? static_cast<std::uint32_t>(end - first) : 0};
}

index_range hull(index_range a, index_range b) {
  auto first = std::min(a.first, b.first);
  return {first, static_cast<std::uint32_t>(std::max(a.end(), b.end()) - first)};
}

bool within(std::uint32_t i, index_range range) { return i >= range.first && i < range.end(); }

index_range shifted(index_range range, std::uint32_t down) { return {range.first - down, range.count}; }

bool same_heads(const leg& a, const leg& b) {
  return a.heads == b.heads && a.from.heads == b.from.heads && a.to.heads == b.to.heads;
}

// A leg may pass over layers that have nothing of its kind; one that has, but not for this pair, ends it.
class run_of_layers {
 public:
  void take(std::uint32_t layer, const leg& l) {
    if (!open_ || !same_heads(legs_.back(), l)) legs_.push_back(l), legs_.back().layers.first = layer;
    legs_.back().layers.count = layer + 1 - legs_.back().layers.first;
    open_ = true;
  }
  void end() { open_ = false; }
  std::vector<leg> legs() && { return std::move(legs_); }

 private:
  std::vector<leg> legs_;
  bool open_ = false;
};

}  // namespace

std::vector<leg> leg_finder::head_legs(const meeting& m, worker from, worker to, sequence_place s) const {
  run_of_layers out;
  leg l;
  l.planes = plane_set::per_head;
  bool alone = false;
  std::uint32_t known = 0;  // the number of heads that these are for
  for (auto layer = m.layers.first; layer < m.layers.end(); ++layer) {
    auto of = model_.kv_heads(layer);
    if (of == 0) continue;
    if (of != known) {
      auto theirs = from_.heads(of, from.rank), ours = to_.heads(of, to.rank);
      l.heads = common(theirs, ours);
      l.from.heads = shifted(l.heads, theirs.first);
      l.to.heads = shifted(l.heads, ours.first);
      alone = from_.degree() <= of;
      known = of;
    }
    if (l.heads.count > 0 && (alone || choice_.of_head(layer, l.heads.first, to.rank, s) == from.rank))
      out.take(layer, l);
    else
      out.end();
  }
  return std::move(out).legs();
}

std::vector<leg> leg_finder::shared_legs(const meeting& m, worker from, worker to, sequence_place s) const {
  run_of_layers out;
  leg l;
  l.planes = plane_set::shared;
  for (auto layer = m.layers.first; layer < m.layers.end(); ++layer) {
    if (!choice_.has_shared(layer)) continue;
    if (choice_.of_shared(layer, to.rank, s) == from.rank)
      out.take(layer, l);
    else
      out.end();
  }
  return std::move(out).legs();
}

// One leg over the layers of both moves nothing that the two would not.
bool leg_finder::can_join(const leg& heads, const leg& shared) const {
  auto both = hull(heads.layers, shared.layers);
  for (auto layer = both.first; layer < both.end(); ++layer) {
    if (!within(layer, heads.layers) && model_.kv_heads(layer) > 0) return false;
    if (!within(layer, shared.layers) && choice_.has_shared(layer)) return false;
  }
  return true;
}

std::vector<leg> leg_finder::of_sequence(const meeting& m, worker from, worker to, sequence_place s) const {
  auto legs = head_legs(m, from, to, s);
  auto heads = static_cast<std::ptrdiff_t>(legs.size());
  for (auto& shared : shared_legs(m, from, to, s)) {
    auto with = std::find_if(legs.begin(), legs.begin() + heads,
                             [&](const leg& l) { return l.planes == plane_set::per_head && can_join(l, shared); });
    if (with == legs.begin() + heads) {
      legs.push_back(shared);
      continue;
    }
    with->layers = hull(with->layers, shared.layers);
    with->planes = plane_set::all;
  }
  return legs;
}

void leg_finder::find_pair(const meeting& m, worker from, worker to, std::uint32_t sequences,
                           std::vector<leg>& out) const {
  auto first = static_cast<std::ptrdiff_t>(out.size());
  for (std::uint32_t s = 0; s < sequences; ++s)
    for (auto& next : of_sequence(m, from, to, {s, sequences})) {
      auto same = std::find_if(out.begin() + first, out.end(), [&](const leg& l) {
        return l.sequences.end() == s && l.layers == next.layers && l.planes == next.planes && same_heads(l, next);
      });
      if (same != out.end()) {
        ++same->sequences.count;
        continue;
      }
      next.sequences = {s, 1};
      next.from.worker = from;
      next.to.worker = to;
      next.from.layers = shifted(next.layers, from_.layers(model_.layers(), from.stage).first);
      next.to.layers = shifted(next.layers, to_.layers(model_.layers(), to.stage).first);
      out.push_back(next);
    }
}

// Most pairs of many ranks have nothing to do with each other, and looking at every sequence would be long. Who sends
// the last sequence is never before who sends the first.
bool leg_finder::may_send(const meeting& m, worker from, worker to, std::uint32_t sequences) const {
  auto between = [&](std::uint32_t a, std::uint32_t b) { return a <= from.rank && from.rank <= b; };
  sequence_place first{0, sequences}, last{sequences - 1, sequences};
  for (auto layer = m.layers.first; layer < m.layers.end(); ++layer) {
    auto of = model_.kv_heads(layer);
    auto heads = common(from_.heads(of, from.rank), to_.heads(of, to.rank));
    if (heads.count > 0 && (from_.degree() <= of || between(choice_.of_head(layer, heads.first, to.rank, first),
                                                            choice_.of_head(layer, heads.first, to.rank, last))))
      return true;
    if (choice_.has_shared(layer) &&
        between(choice_.of_shared(layer, to.rank, first), choice_.of_shared(layer, to.rank, last)))
      return true;
  }
  return false;
}

std::vector<leg> leg_finder::find(const meeting& m, std::uint32_t sequences) const {
  std::vector<leg> out;
  for (std::uint32_t a = 0; a < from_.degree(); ++a)
    for (std::uint32_t b = 0; b < to_.degree(); ++b) {
      worker from{m.from_stage, a}, to{m.to_stage, b};
      if (sequences == 1 || may_send(m, from, to, sequences)) find_pair(m, from, to, sequences, out);
    }
  std::ranges::sort(out, {}, [](const leg& l) {
    return std::tuple(l.layers.first, l.sequences.first, l.from.worker, l.to.worker, l.planes);
  });
  return out;
}

bool leg_finder::depends_on_sequence(const meeting& m) const {
  for (auto layer = m.layers.first; layer < m.layers.end(); ++layer)
    if (choice_.depends_on_sequence(layer)) return true;
  return false;
}

}  // namespace cokv::detail
