// Byte-pair merging: a piece's bytes become tokens by repeatedly joining the neighbours whose merge has the lowest
// rank, leftmost first.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "cokv/engine/token.hpp"

namespace cokv::detail {

// (left, right) -> rank and merged token; open addressing, never more than half full.
class merge_table {
 public:
  struct found {
    std::uint32_t rank = none;
    token_id merged = 0;
  };
  static constexpr std::uint32_t none = ~std::uint32_t{0};

  explicit merge_table(std::size_t count = 0);
  void insert(token_id left, token_id right, std::uint32_t rank, token_id merged);  // the last of equal pairs counts

  found find(token_id left, token_id right) const noexcept {
    auto key = make_key(left, right);
    for (auto i = hash(key);; i = (i + 1) & mask_) {
      auto& s = slots_[i];
      if (s.key == key) return s.value;
      if (s.key == vacant) return {};
    }
  }

 private:
  static constexpr std::uint64_t vacant = ~std::uint64_t{0};
  struct slot {
    std::uint64_t key = vacant;
    found value;
  };
  static std::uint64_t make_key(token_id left, token_id right) noexcept {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }
  // The product's upper bits: the lower ones know nothing of the left token.
  std::size_t hash(std::uint64_t key) const noexcept {
    return static_cast<std::size_t>(key * 0x9e3779b97f4a7c15u >> shift_);
  }
  std::vector<slot> slots_;
  std::size_t mask_;
  int shift_;
};

class bpe_merger {
 public:
  // Appends the tokens of `piece`. Short pieces by scanning, long ones by a heap in n log n.
  void merge(std::string_view piece, const std::array<token_id, 256>& bytes, const merge_table& merges,
             std::vector<token_id>& out);

 private:
  void merge_short(const merge_table& merges);
  void merge_long(const merge_table& merges);

  struct candidate {
    std::uint32_t rank;
    std::uint32_t at;
    token_id left, right, merged;
    bool operator>(const candidate& o) const noexcept { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  std::vector<token_id> symbols_;
  std::vector<merge_table::found> pairs_;
  std::vector<std::uint32_t> next_, before_;
  std::vector<candidate> heap_;
};

}  // namespace cokv::detail
