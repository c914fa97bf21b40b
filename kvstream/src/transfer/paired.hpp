// Copies between two lists of pieces that hold the same bytes in the same order, cut where either is.
#pragma once

#include <algorithm>
#include <vector>

#include "cokv/runtime/buffer.hpp"

namespace cokv::detail {

inline void pair_up(std::vector<copy_op>& out, const std::vector<buffer>& to, const std::vector<buffer>& from) {
  for (std::size_t i = 0, j = 0, a = 0, b = 0; i < to.size() && j < from.size();) {
    const auto n = std::min(to[i].size() - a, from[j].size() - b);
    if (n > 0) out.push_back({to[i].slice(a, n), from[j].slice(b, n)});
    if ((a += n) == to[i].size()) ++i, a = 0;
    if ((b += n) == from[j].size()) ++j, b = 0;
  }
}

}  // namespace cokv::detail
