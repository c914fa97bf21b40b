// Windows of a link's peer that lie in memory which is mapped here: puts and gets copy by themselves. Whether a window
// does is asked once.
#pragma once

#include <map>
#include <memory>

#include "cokv/runtime/net.hpp"
#include "link/copy_range.hpp"
#include "link/lent_windows.hpp"
#include "link/link_job.hpp"

namespace cokv::detail {

class borrowed_windows {
 public:
  struct window {
    std::shared_ptr<link_job> asked;  // ends with the answer
    std::vector<buffer> pieces;       // none: it is not lent
    std::vector<std::uint64_t> begins;
    std::uint64_t size = 0;
    bool has(std::uint64_t offset, std::uint64_t n) const { return n <= size && offset <= size - n; }
    piece_cursor at(std::uint64_t offset) const { return place_in(pieces, begins, offset); }
  };

  // Null: not asked for yet.
  window* find(const window_key& key);
  // The answer is awaited from now on.
  window& ask(const window_key& key, const prepared_executor& ex);
  // What the peer says to the question that `asked` waits for (a refusal only ends it). errc::protocol for what can't be so. Memory that can't be mapped here: as refused.
  error_code granted(const window_key& key, const std::shared_ptr<link_job>& asked, const window_layout& layout,
                     byte_stream& from);
  void drop(const window_key& key);
  void clear();

 private:
  std::map<window_key, window> windows_;
  std::map<std::uint32_t, buffer> memories_;
};

}  // namespace cokv::detail
