// The digest of a slice on its way through staging. Where staging holds whole leaves, a tree digest is made of them in
// whatever order they come; else bytes are taken in theirs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "transfer/running_digest.hpp"

namespace cokv::detail {

class slice_digest {
 public:
  slice_digest(digest_algorithm how, std::uint64_t bytes, bool whole_leaves)
      : by_leaves_(whole_leaves && how == digest_algorithm::xxh3_64_tree),
        bytes_(bytes),
        in_order_(by_leaves_ ? digest_algorithm::none : how),
        leaves_(by_leaves_ ? (bytes + tree_leaf_bytes - 1) / tree_leaf_bytes : 0) {}

  bool made() const noexcept { return by_leaves_ || in_order_; }
  bool by_leaves() const noexcept { return by_leaves_; }
  running_digest& in_order() noexcept { return in_order_; }

  // At this offset of the slice, which begins a leaf.
  void take(std::uint64_t at, std::span<const std::byte> packed) noexcept {
    for (auto leaf = at / tree_leaf_bytes; !packed.empty(); ++leaf) {
      const auto n = std::min(packed.size(), tree_leaf_bytes);
      leaves_[leaf] = tree_leaf_of(packed.first(n));
      packed = packed.subspan(n);
    }
  }
  void take(std::uint64_t at, std::span<const std::uint64_t> leaves) noexcept {
    std::ranges::copy(leaves, leaves_.begin() + static_cast<std::ptrdiff_t>(at / tree_leaf_bytes));
  }

  std::uint64_t value() const noexcept { return by_leaves_ ? tree_digest_of(leaves_, bytes_) : in_order_.value(); }

 private:
  bool by_leaves_;
  std::uint64_t bytes_;
  running_digest in_order_;
  std::vector<std::uint64_t> leaves_;
};

}  // namespace cokv::detail
