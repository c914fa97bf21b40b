// Copies between two lists of pieces, each as if its pieces lay one behind the other.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "cokv/runtime/buffer.hpp"
#include "detail/streamer.hpp"

namespace cokv::detail {

// A place in a list of pieces that only moves on.
class piece_cursor {
 public:
  piece_cursor(std::span<const buffer> pieces, std::size_t piece = 0, std::uint64_t offset = 0)
      : pieces_(pieces), piece_(piece), offset_(offset) {
    settle();
  }

  std::span<std::byte> here() const { return pieces_[piece_].bytes().subspan(offset_); }
  void advance(std::uint64_t n) {
    offset_ += n;
    settle();
  }

 private:
  void settle() {
    while (piece_ < pieces_.size() && offset_ >= pieces_[piece_].size()) offset_ -= pieces_[piece_++].size();
  }

  std::span<const buffer> pieces_;
  std::size_t piece_;
  std::uint64_t offset_;
};

// Where `offset` lies, given where each piece begins.
inline piece_cursor place_in(const std::vector<buffer>& pieces, const std::vector<std::uint64_t>& begins,
                             std::uint64_t offset) {
  const auto i = static_cast<std::size_t>(std::ranges::upper_bound(begins, offset) - begins.begin()) - 1;
  return {pieces, i, offset - begins[i]};
}

// The next n bytes of both, which have them and do not overlap; they are digested in the same pass where a digest is
// given. Ordered before any later store.
inline void copy_range(digest_state* digest, piece_cursor& into, piece_cursor& from, std::uint64_t n) noexcept {
  constexpr std::uint64_t least_streamed = 2 << 10;  // smaller pieces cost more by themselves than they save
  // What goes past the caches is decided by the whole: its pieces are as many bytes that nobody here reads again.
  const streamer copy(n >= (64 << 10) ? best_copy_path() : copy_path::automatic, n);
  while (n > 0) {
    const auto to = into.here();
    const auto source = from.here();
    const auto here = std::min<std::uint64_t>({to.size(), source.size(), n});
    if (here >= least_streamed) {
      digest ? copy(*digest, to.first(here), source.first(here)) : copy(to.first(here), source.first(here));
    } else {
      std::memcpy(to.data(), source.data(), here);
      if (digest) digest->update(source.first(here));
    }
    into.advance(here);
    from.advance(here);
    n -= here;
  }
  copy.finish();
}

// The next n bytes. Processors foresee no step from page to page: what lies scattered is fetched ahead, into the second
// cache, because the first takes too few at a time. Within large pieces they do it better by themselves.
inline void digest_range(digest_state& digest, piece_cursor& of, std::uint64_t n) noexcept {
  constexpr std::uint64_t step = 2 << 10, ahead = 4 << 10, large = 64 << 10, line = 64;
  auto soon = of;  // `ahead` before, as far as n goes
  soon.advance(std::min(n, ahead));
  while (n > 0) {
    const auto bytes = of.here();
    auto here = std::min<std::uint64_t>(bytes.size(), n);
    if (here > large) {
      here -= ahead;
      soon.advance(here);
    } else {
      here = std::min(here, step);
      for (auto left = std::min(here, n - std::min(n, ahead)); left > 0;) {
        const auto next = soon.here();
        const auto fetched = std::min<std::uint64_t>(next.size(), left);
        for (std::uint64_t at = 0; at < fetched; at += line) __builtin_prefetch(next.data() + at, 0, 2);
        soon.advance(fetched);
        left -= fetched;
      }
    }
    digest.update(bytes.first(here));
    of.advance(here);
    n -= here;
  }
}

}  // namespace cokv::detail
