// The digest of bytes that are taken in order, of whichever algorithm; of none, what is asked to be digested is not.
#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "cokv/kvstream/digest.hpp"

namespace cokv::detail {

class running_digest {
 public:
  explicit running_digest(digest_algorithm how) {
    if (how == digest_algorithm::xxh3_64) state_.emplace<digest_state>();
    if (how == digest_algorithm::xxh3_64_tree) state_.emplace<tree_digest_state>();
  }
  explicit operator bool() const noexcept { return state_.index() != 0; }

  void update(std::span<const std::byte> bytes) noexcept {
    if (auto* s = std::get_if<digest_state>(&state_)) s->update(bytes);
    if (auto* s = std::get_if<tree_digest_state>(&state_)) s->update(bytes);
  }
  void copy(std::span<std::byte> into, std::span<const std::byte> from) noexcept {
    if (auto* s = std::get_if<digest_state>(&state_)) return s->copy(into, from);
    if (auto* s = std::get_if<tree_digest_state>(&state_)) return s->copy(into, from);
    copy_bytes(into, from);
  }
  std::uint64_t value() const noexcept {
    if (auto* s = std::get_if<digest_state>(&state_)) return s->value();
    if (auto* s = std::get_if<tree_digest_state>(&state_)) return s->value();
    return 0;
  }

 private:
  std::variant<std::monostate, digest_state, tree_digest_state> state_;
};

}  // namespace cokv::detail
