#include "route/sender_choice.hpp"

namespace cokv::detail {
namespace {

// Too few layers and receivers for every sender to have one.
bool too_few(std::uint64_t receivers, std::uint64_t layers, std::uint64_t senders) {
  return receivers * layers < senders;
}

}  // namespace

sender_choice::sender_choice(const topology& from, const topology& to, const geometry& model)
    : from_(from), to_(to), model_(model), heads_(model.layers()), shared_(model.layers()) {
  for (auto& group : model.groups())
    for (auto layer = group.first; layer < group.first + group.count; ++layer)
      for (std::size_t i = 0; i < group.planes.size(); ++i)
        (group.planes[i].per_head ? heads_ : shared_)[layer].bytes += model.row_bytes(layer, i);
  for (std::uint32_t stage = 0; stage < from.depth(); ++stage) {
    auto layers = from.layers(model.layers(), stage);
    // Layers with another number of heads have other twins.
    sum_up(heads_, layers, [&](auto a, auto b) { return model.kv_heads(a) == model.kv_heads(b); });
    sum_up(shared_, layers, [](auto, auto) { return true; });
  }
}

template <class Same>
void sender_choice::sum_up(std::vector<load>& loads, index_range stage, Same same) {
  for (auto layer = stage.first; layer < stage.end(); ++layer)
    for (auto other = stage.first; other < stage.end(); ++other) {
      if (loads[other].bytes == 0 || !same(layer, other)) continue;
      if (other < layer) loads[layer].before += loads[other].bytes;
      loads[layer].total += loads[other].bytes;
      ++loads[layer].layers;
    }
}

// Everything that the senders send is laid out in a row, receiver by receiver, and cut into equal parts: a piece is sent
// by whom its beginning falls to. The products stay below 2^63: a layer is under 2^30 bytes a token, a model has 2^12
// of them, a stage 2^8 ranks, a batch 2^12 sequences, and sequences count only where layers are fewer than ranks.
std::uint32_t sender_choice::choose(const load& l, index_range senders, index_range receivers, std::uint32_t to_rank,
                                    sequence_place s) {
  if (senders.count == 1) return senders.first;
  if (!too_few(receivers.count, l.layers, senders.count)) s = {};
  auto begin = ((to_rank - receivers.first) * l.total + l.before) * s.of + l.bytes * s.index;
  return senders.first + static_cast<std::uint32_t>(begin * senders.count / (receivers.count * l.total * s.of));
}

std::uint32_t sender_choice::of_head(std::uint32_t layer, std::uint32_t head, std::uint32_t to_rank,
                                     sequence_place s) const {
  auto heads = model_.kv_heads(layer);
  return choose(heads_[layer], from_.ranks(heads, head), to_.ranks(heads, head), to_rank, s);
}

std::uint32_t sender_choice::of_shared(std::uint32_t layer, std::uint32_t to_rank, sequence_place s) const {
  return choose(shared_[layer], {0, from_.degree()}, {0, to_.degree()}, to_rank, s);
}

bool sender_choice::depends_on_sequence(std::uint32_t layer) const {
  if (has_shared(layer) && too_few(to_.degree(), shared_[layer].layers, from_.degree())) return true;
  auto heads = model_.kv_heads(layer);
  for (std::uint32_t head = 0; head < heads && heads < from_.degree(); ++head)
    if (too_few(to_.ranks(heads, head).count, heads_[layer].layers, from_.ranks(heads, head).count)) return true;
  return false;
}

}  // namespace cokv::detail
