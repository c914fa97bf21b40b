#include "cokv/kvstream/placement.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace cokv {
namespace {

index_range checked_layers(const topology& t, const geometry& model, worker w) {
  t.check(model.layers());
  if (w.rank >= t.degree()) throw std::out_of_range("placement: no rank " + std::to_string(w.rank));
  return t.layers(model.layers(), w.stage);
}

// The part of a group that lies in `layers`; count 0 when none does.
index_range inside(const layer_group& g, index_range layers) {
  auto first = std::max(g.first, layers.first);
  auto end = std::min<std::uint64_t>(std::uint64_t{g.first} + g.count, layers.end());
  return {first, end > first ? static_cast<std::uint32_t>(end - first) : 0};
}

geometry local_shape(const topology& t, const geometry& model, worker w, index_range layers) {
  std::vector<layer_group> groups;
  for (auto& g : model.groups())
    if (auto part = inside(g, layers); part.count > 0) {
      auto& own = groups.emplace_back(g);
      own.first = part.first - layers.first;
      own.count = part.count;
      own.kv_heads = t.heads(g.kv_heads, w.rank).count;
    }
  return geometry(model.block_tokens(), std::move(groups));
}

}  // namespace

placement::placement(const topology& t, const geometry& model, worker w)
    : layers_(checked_layers(t, model, w)), shape_(local_shape(t, model, w, layers_)) {
  part_ = {layers_.first, model.layers(), 0, 0};
  for (auto& g : model.groups()) {
    if (inside(g, layers_).count == 0) continue;
    auto heads = t.heads(g.kv_heads, w.rank);
    group_heads_.push_back(heads);
    if (g.kv_heads == 0 || g.kv_heads == part_.of_heads) continue;
    if (part_.of_heads > 0) heads_differ_ = t.degree() > 1;
    if (g.kv_heads > part_.of_heads) part_.first_head = heads.first, part_.of_heads = g.kv_heads;
  }
}

index_range placement::heads(std::uint32_t layer) const {
  auto& group = shape_.group(local_layer(layer));
  return group_heads_[static_cast<std::size_t>(&group - shape_.groups().data())];
}

std::uint32_t placement::local_layer(std::uint32_t layer) const {
  if (!holds(layer)) throw std::out_of_range("placement: layer " + std::to_string(layer) + " is kept elsewhere");
  return layer - layers_.first;
}

std::uint32_t placement::global_layer(std::uint32_t local) const {
  if (local >= layers_.count) throw std::out_of_range("placement: no layer " + std::to_string(local));
  return local + layers_.first;
}

namespace_id placement::name(std::string_view model_fingerprint) const {
  std::string model(model_fingerprint);
  // Two workers may keep the same heads of the widest layers and others of the rest. An empty fingerprint is left to
  // be refused.
  if (heads_differ_ && !model.empty()) {
    model += "\nheads";
    for (auto heads : group_heads_) model += ":" + std::to_string(heads.first);
  }
  return namespace_id::of(model, shape_, part_);
}

}  // namespace cokv
