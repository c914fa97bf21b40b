#include <algorithm>
#include <array>

#include "cokv/kvstream/digest.hpp"
#include "detail/bytes.hpp"
#include "detail/streamer.hpp"

namespace cokv {
namespace {

void add(digest_state& root, std::uint64_t value) noexcept {
  std::array<std::byte, 8> bytes;
  detail::put<std::uint64_t>(bytes.data(), value);
  root.update(bytes);
}

std::uint64_t filled_up(digest_state leaf, std::size_t bytes) noexcept {
  static constexpr std::array<std::byte, tree_leaf_bytes> zeros{};
  leaf.update(std::span(zeros).subspan(bytes));
  return leaf.value();
}

}  // namespace

void tree_digest_state::reset() noexcept {
  root_.reset();
  leaf_.reset();
  bytes_ = 0;
}

// each(offset, n, whole): the next n bytes, which are a whole leaf or belong to the one begun.
template <class Each>
void tree_digest_state::take(std::size_t n, const Each& each) noexcept {
  for (std::size_t at = 0; at < n;) {
    const std::size_t begun = bytes_ % tree_leaf_bytes, some = std::min(tree_leaf_bytes - begun, n - at);
    if (some == tree_leaf_bytes) {
      add(root_, each(at, some, true));
    } else {
      each(at, some, false);
      if (begun + some == tree_leaf_bytes) {
        add(root_, leaf_.value());
        leaf_.reset();
      }
    }
    bytes_ += some;
    at += some;
  }
}

void tree_digest_state::update(std::span<const std::byte> bytes) noexcept {
  take(bytes.size(), [&](std::size_t at, std::size_t n, bool whole) -> std::uint64_t {
    const auto part = bytes.subspan(at, n);
    if (whole) return digest_of(part);
    leaf_.update(part);
    return 0;
  });
}

void tree_digest_state::copy(std::span<std::byte> into, std::span<const std::byte> from, copy_path path) noexcept {
  const detail::streamer copy(path, from.size());
  take(from.size(), [&](std::size_t at, std::size_t n, bool whole) -> std::uint64_t {
    const auto part = from.subspan(at, n);
    std::uint64_t value = 0;
    if (whole)
      value = digest_of(part);
    else
      leaf_.update(part);
    copy(into.subspan(at, n), part);
    return value;
  });
  copy.finish();
}

std::uint64_t tree_digest_state::value() const noexcept {
  auto root = root_;
  if (const auto begun = bytes_ % tree_leaf_bytes) add(root, filled_up(leaf_, begun));
  add(root, bytes_);
  return root.value();
}

std::uint64_t tree_digest_of(std::span<const std::byte> bytes) noexcept {
  tree_digest_state d;
  d.update(bytes);
  return d.value();
}

std::uint64_t tree_digest_of(std::span<const std::uint64_t> leaves, std::uint64_t bytes) noexcept {
  digest_state root;
  for (const auto leaf : leaves) add(root, leaf);
  add(root, bytes);
  return root.value();
}

std::uint64_t tree_leaf_of(std::span<const std::byte> leaf) noexcept {
  if (leaf.size() == tree_leaf_bytes) return digest_of(leaf);
  digest_state part;
  part.update(leaf);
  return filled_up(part, leaf.size());
}

}  // namespace cokv
