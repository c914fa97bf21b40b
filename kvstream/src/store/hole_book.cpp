#include "store/hole_book.hpp"

#include <iterator>

namespace cokv::detail {

hole_book::hole_book(std::uint64_t bytes) : free_(bytes) {
  if (bytes == 0) return;
  by_place_.emplace(0, bytes);
  by_size_.emplace(bytes, 0);
}

// Without an allocation.
void hole_book::resize(place::iterator hole, std::uint64_t bytes) {
  auto sized = by_size_.extract({hole->second, hole->first});
  hole->second = bytes;
  sized.value() = {bytes, hole->first};
  by_size_.insert(std::move(sized));
}

std::optional<std::uint64_t> hole_book::take(std::uint64_t bytes) {
  const auto fit = by_size_.lower_bound({bytes, 0});
  if (bytes == 0 || fit == by_size_.end()) return std::nullopt;
  const auto [size, at] = *fit;
  auto hole = by_place_.extract(at);
  auto sized = by_size_.extract(fit);
  free_ -= bytes;
  if (size == bytes) return at;
  hole.key() = at + bytes;
  hole.mapped() = size - bytes;
  sized.value() = {size - bytes, at + bytes};
  by_place_.insert(std::move(hole));
  by_size_.insert(std::move(sized));
  return at;
}

void hole_book::give_back(std::uint64_t at, std::uint64_t bytes) {
  const auto after = by_place_.lower_bound(at);
  const auto before = after == by_place_.begin() ? by_place_.end() : std::prev(after);
  const bool joins_before = before != by_place_.end() && before->first + before->second == at;
  const bool joins_after = after != by_place_.end() && at + bytes == after->first;
  if (joins_before) {
    auto whole = before->second + bytes;
    if (joins_after) {
      whole += after->second;
      by_size_.erase({after->second, after->first});
      by_place_.erase(after);
    }
    resize(before, whole);
  } else if (joins_after) {
    auto sized = by_size_.extract({after->second, after->first});
    auto hole = by_place_.extract(after);
    hole.key() = at;
    hole.mapped() += bytes;
    sized.value() = {hole.mapped(), at};
    by_place_.insert(std::move(hole));
    by_size_.insert(std::move(sized));
  } else {
    const auto made = by_size_.emplace(bytes, at).first;
    try {
      by_place_.emplace(at, bytes);
    } catch (...) {
      by_size_.erase(made);
      throw;
    }
  }
  free_ += bytes;
}

}  // namespace cokv::detail
