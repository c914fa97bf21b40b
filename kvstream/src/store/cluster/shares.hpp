// Which node gets which of a request's keys, and how far the whole prefix reaches when each has told how far its own
// part does. Pure.
#pragma once

#include <algorithm>
#include <vector>

#include "cokv/kvstream/rendezvous.hpp"

namespace cokv::detail {

// One node's part of a request: places in its list of keys, rising.
struct cluster_share {
  std::size_t node = 0;
  std::vector<std::uint32_t> at;

  // How many of them lie before `end`.
  std::size_t before(std::size_t end) const {
    return static_cast<std::size_t>(std::ranges::lower_bound(at, end) - at.begin());
  }
  // Where the prefix ends when the first `found` of them are there, and all of the others': at most `end`.
  std::size_t end_of(std::size_t found, std::size_t end) const {
    return found < at.size() ? std::min<std::size_t>(end, at[found]) : end;
  }
  // Theirs out of what there is for each key.
  template <class T>
  std::vector<T> pick(const std::vector<T>& all, std::size_t count) const {
    std::vector<T> out;
    out.reserve(count);
    for (std::size_t i = 0; i < count; ++i) out.push_back(all[at[i]]);
    return out;
  }
};

// In the order of the nodes; none is empty.
inline std::vector<cluster_share> shares_of(const rendezvous& where, const std::vector<block_key>& keys) {
  std::vector<cluster_share> by_node(where.size());
  std::size_t node = 0;
  for (std::uint32_t i = 0; i < keys.size(); ++i) {
    if (i == 0 || keys[i].stretch() != keys[i - 1].stretch()) node = where.node_of(keys[i]);
    by_node[node].at.push_back(i);
  }
  std::vector<cluster_share> out;
  for (std::size_t n = 0; n < by_node.size(); ++n)
    if (!by_node[n].at.empty()) out.push_back({n, std::move(by_node[n].at)});
  return out;
}

}  // namespace cokv::detail
