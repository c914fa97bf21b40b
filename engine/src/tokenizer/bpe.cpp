#include "bpe.hpp"

#include <algorithm>
#include <bit>
#include <functional>

namespace cokv::detail {
namespace {

constexpr std::size_t short_piece = 32;
constexpr token_id joined = -1;  // a symbol that its left neighbour took in

}  // namespace

merge_table::merge_table(std::size_t count)
    : slots_(std::bit_ceil(std::max<std::size_t>(16, count * 2 + 2))),
      mask_(slots_.size() - 1),
      shift_(64 - std::countr_zero(slots_.size())) {}

void merge_table::insert(token_id left, token_id right, std::uint32_t rank, token_id merged) {
  auto key = make_key(left, right);
  auto i = hash(key);
  while (slots_[i].key != vacant && slots_[i].key != key) i = (i + 1) & mask_;
  slots_[i] = {key, {rank, merged}};
}

void bpe_merger::merge_short(const merge_table& merges) {
  auto& s = symbols_;
  pairs_.clear();
  for (std::size_t i = 0; i + 1 < s.size(); ++i) pairs_.push_back(merges.find(s[i], s[i + 1]));
  while (!pairs_.empty()) {
    auto best = std::min_element(pairs_.begin(), pairs_.end(), [](auto& a, auto& b) { return a.rank < b.rank; });
    if (best->rank == merge_table::none) return;
    auto i = best - pairs_.begin();
    s[static_cast<std::size_t>(i)] = best->merged;
    s.erase(s.begin() + i + 1);
    pairs_.erase(best);
    auto at = static_cast<std::size_t>(i);
    if (at > 0) pairs_[at - 1] = merges.find(s[at - 1], s[at]);
    if (at < pairs_.size()) pairs_[at] = merges.find(s[at], s[at + 1]);
  }
}

void bpe_merger::merge_long(const merge_table& merges) {
  auto& s = symbols_;
  auto n = static_cast<std::uint32_t>(s.size());
  next_.resize(n + 1);
  before_.resize(n + 1);
  for (std::uint32_t i = 0; i < n; ++i) {
    next_[i] = i + 1;
    before_[i] = i - 1;  // wraps for 0, never read
  }
  heap_.clear();
  auto look = [&](std::uint32_t at) {
    if (next_[at] >= n) return false;
    auto right = s[next_[at]];
    auto found = merges.find(s[at], right);
    if (found.rank == merge_table::none) return false;
    heap_.push_back({found.rank, at, s[at], right, found.merged});
    return true;
  };
  auto push = [&](std::uint32_t at) {
    if (look(at)) std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  };
  for (std::uint32_t i = 0; i < n; ++i) look(i);
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    auto c = heap_.back();
    heap_.pop_back();
    // Out of date when either neighbour was joined since.
    if (s[c.at] != c.left || next_[c.at] >= n || s[next_[c.at]] != c.right) continue;
    auto right = next_[c.at];
    s[c.at] = c.merged;
    s[right] = joined;
    next_[c.at] = next_[right];
    if (next_[right] < n) before_[next_[right]] = c.at;
    if (c.at > 0) push(before_[c.at]);
    push(c.at);
  }
  std::erase(s, joined);
}

void bpe_merger::merge(std::string_view piece, const std::array<token_id, 256>& bytes, const merge_table& merges,
                       std::vector<token_id>& out) {
  symbols_.clear();
  for (unsigned char c : piece) symbols_.push_back(bytes[c]);
  if (symbols_.size() <= short_piece) {
    merge_short(merges);
  } else {
    merge_long(merges);
  }
  out.insert(out.end(), symbols_.begin(), symbols_.end());
}

}  // namespace cokv::detail
