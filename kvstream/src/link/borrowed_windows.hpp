// Windows of a link's peer that lie in memory which is mapped or opened here: puts and gets copy by themselves. Whether a
// window does is asked once.
#pragma once

#include <map>
#include <memory>

#include "cokv/runtime/net.hpp"
#include "link/copy_range.hpp"
#include "link/device_reach.hpp"
#include "link/lent_windows.hpp"
#include "link/link_job.hpp"

namespace cokv::detail {

class borrowed_windows {
 public:
  struct window {
    std::shared_ptr<link_job> asked;  // ends with the answer
    bool device_alone = false;        // memory of the host was not asked for
    std::vector<buffer> pieces;       // none: it is not lent
    std::vector<std::uint64_t> begins;
    std::uint64_t size = 0;
    bool has(std::uint64_t offset, std::uint64_t n) const { return n <= size && offset <= size - n; }
    bool on_device() const { return !pieces.empty() && !pieces.front().host_accessible(); }  // then all of it
    piece_cursor at(std::uint64_t offset) const { return place_in(pieces, begins, offset); }
  };

  // Null: not asked for yet.
  window* find(const window_key& key);
  // The answer is awaited from now on.
  window& ask(const window_key& key, bool device_alone, const prepared_executor& ex);
  // What the peer says to the question that `asked` waits for (a refusal only ends it). errc::protocol for what can't be
  // so. Memory that can't be mapped or opened here: as refused. `device`: null if none was asked for.
  error_code granted(const window_key& key, const std::shared_ptr<link_job>& asked, const window_layout& layout,
                     byte_stream& from, device_reach* device);
  void drop(const window_key& key);
  // A device's copies in a window go on when it is dropped. copying(): null, or what ends with the last of them.
  void begin_copy(const window_key& key, const prepared_executor& ex);
  void end_copy(const window_key& key);
  std::shared_ptr<link_job> copying(const window_key& key) const;
  void clear();

 private:
  error_code take_memories(const window_layout& layout, byte_stream& from, device_reach* device);

  std::map<window_key, window> windows_;
  std::map<std::uint32_t, buffer> memories_;
  std::map<window_key, std::shared_ptr<link_job>> copying_;
};

}  // namespace cokv::detail
