#include "cluster/prefix_index.hpp"

#include <algorithm>
#include <array>

namespace cokv::cluster {
namespace {

constexpr std::array<std::string_view, 3> tiers{"device", "host", "disk"};

// Its bit; 0: none of its own.
std::uint8_t bit_of(std::string_view tier) {
  const auto at = std::ranges::find(tiers, tier);
  return at == tiers.end() ? 0 : static_cast<std::uint8_t>(1 << (at - tiers.begin()));
}

}  // namespace

template <class Change>
void prefix_index::change(worker at, std::span<const block_key> keys, bool adds, Change f) {
  if (keys.empty()) return;
  const auto found = adds ? workers_.try_emplace(at).first : workers_.find(at);
  if (found == workers_.end()) return;
  auto& all = found->second;
  for (const auto& key : keys) {
    auto one = all.find(key);
    if (one == all.end()) {
      if (!adds || all.size() >= most_) continue;
      one = all.emplace(key, entry()).first;
    }
    f(one->second);
    if (one->second.tiers == 0 && one->second.expected == 0) all.erase(one);
  }
  if (all.empty()) workers_.erase(found);
}

void prefix_index::stored(worker at, std::string_view tier, std::span<const block_key> keys) {
  if (const auto bit = bit_of(tier)) change(at, keys, true, [bit](entry& e) { e.tiers |= bit; });
}

void prefix_index::removed(worker at, std::string_view tier, std::span<const block_key> keys) {
  if (const auto bit = bit_of(tier))
    change(at, keys, false, [bit](entry& e) { e.tiers &= static_cast<std::uint8_t>(~bit); });
}

void prefix_index::expect(worker at, std::span<const block_key> keys) {
  change(at, keys, true, [](entry& e) { ++e.expected; });
}

void prefix_index::unexpect(worker at, std::span<const block_key> keys) {
  change(at, keys, false, [](entry& e) { e.expected -= e.expected > 0; });
}

void prefix_index::clear(worker at) {
  const auto found = workers_.find(at);
  if (found == workers_.end()) return;
  for (auto& [key, e] : found->second) e.tiers = 0;
  std::erase_if(found->second, [](const auto& one) { return one.second.expected == 0; });
  if (found->second.empty()) workers_.erase(found);
}

std::size_t prefix_index::leading(worker at, std::span<const block_key> keys) const {
  const auto found = workers_.find(at);
  if (found == workers_.end()) return 0;
  std::size_t n = 0;
  while (n < keys.size() && found->second.contains(keys[n])) ++n;
  return n;
}

std::size_t prefix_index::size(worker at) const {
  const auto found = workers_.find(at);
  return found == workers_.end() ? 0 : found->second.size();
}

}  // namespace cokv::cluster
