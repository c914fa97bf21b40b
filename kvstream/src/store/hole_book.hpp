// Which bytes of a memory are free: holes, of which the smallest that is large enough is taken from (best fit), and
// which grow together with their neighbours. A pure book: it never looks at the memory.
//
//     hole_book book(1 << 30);
//     auto at = book.take(4096);        // 0
//     book.give_back(*at, 4096);
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace cokv::detail {

class hole_book {
 public:
  explicit hole_book(std::uint64_t bytes);

  // The start of `bytes` that are not free any more; nothing when no hole is that large. Of equal holes the lowest, and
  // its beginning, so that memory that was never used stays so for as long as it can.
  std::optional<std::uint64_t> take(std::uint64_t bytes);
  // What take() gave. Throws std::bad_alloc, and then these bytes are not free.
  void give_back(std::uint64_t at, std::uint64_t bytes);

  std::uint64_t free() const noexcept { return free_; }
  std::size_t holes() const noexcept { return by_place_.size(); }

 private:
  using place = std::map<std::uint64_t, std::uint64_t>;  // bytes by where they begin

  void resize(place::iterator hole, std::uint64_t bytes);

  place by_place_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;  // bytes, place
  std::uint64_t free_;
};

}  // namespace cokv::detail
