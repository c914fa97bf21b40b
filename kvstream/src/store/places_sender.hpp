// The segments of a write by their places: what lies in memory that this process shares is told of where it lies, other
// memory is copied to some of the connection's own. Pieces are on their way while the next is digested, or copied. A layer is
// done when its server has copied what was told of the caller's memory, or before, when that stays as it is.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "cokv/kvstream/block_places.hpp"
#include "store/http_client.hpp"

namespace cokv::detail {

class places_sender {
 public:
  places_sender(const stream_begin& about, bool stable);  // outlives it

  // Whether it goes by places at all: not without digests, nor with segments that are more than is kept to copy them to.
  static bool fits(const stream_begin& about);

  awaitable<error_code> send(http_connection& to, const std::vector<buffer>& segments);
  // Says that this was all; then all of it is copied, and the answer comes.
  awaitable<error_code> finish(http_connection& to);

 private:
  struct piece {
    block_places where;
    byte_stream::descriptor file;  // of memory that the server does not know
    bool callers = true;
  };
  // Those from `first` on that go together.
  result<piece> lying(shown_memory& shown, const std::vector<buffer>& segments, std::size_t first) const;
  result<piece> copied(shown_memory& shown, const std::vector<buffer>& segments, std::size_t first);
  awaitable<error_code> say(http_connection& to, std::string what);
  awaitable<error_code> heard(http_connection& from);
  awaitable<error_code> all_heard(http_connection& from);

  const stream_begin& about_;
  bool stable_;
  std::size_t part_;   // of the own memory: a piece of the largest segments
  std::size_t parts_;  // as many pieces are on their way
  std::size_t next_ = 0;
  std::deque<bool> under_way_;  // whether it lies in the caller's memory
};

// As a chunk of a body; of nothing: its end.
std::string in_chunk(std::span<const std::byte> bytes);

}  // namespace cokv::detail
