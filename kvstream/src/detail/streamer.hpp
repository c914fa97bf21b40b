// A copy of many pieces, as digest.hpp's of one: what passes the caches is ordered once, behind the last of them. An
// order behind each waits for memory, which of pieces of 4 KiB takes as long as the copy.
//
//     streamer copy(best_copy_path(), bytes);
//     for (...) copy(into, from);  // or copy(digest, into, from)
//     copy.finish();
#pragma once

#include "cokv/kvstream/digest.hpp"

namespace cokv::detail {

class streamer {
 public:
  // `automatic` is decided by the whole.
  streamer(copy_path path, std::size_t bytes) noexcept;

  void operator()(std::span<std::byte> into, std::span<const std::byte> from) const noexcept;
  void operator()(digest_state& digest, std::span<std::byte> into, std::span<const std::byte> from) const noexcept;
  // Ordered before any later store.
  void finish() const noexcept;

 private:
  copy_path path_;
};

}  // namespace cokv::detail
