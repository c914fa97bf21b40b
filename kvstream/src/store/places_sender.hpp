// The segments of a write by their places: what lies in memory that this process shares is told of where it lies, other
// memory is copied to some of the connection's own. Pieces are on their way while the next is digested, or copied; a layer is
// done when its server has copied all of it, and its memory is free again then.
#pragma once

#include <string>
#include <vector>

#include "cokv/kvstream/block_places.hpp"
#include "store/http_client.hpp"

namespace cokv::detail {

class places_sender {
 public:
  explicit places_sender(const stream_begin& about);  // outlives it

  // Whether it goes by places at all: not without digests, nor with segments that are more than is kept to copy them to.
  static bool fits(const stream_begin& about);

  awaitable<error_code> send(http_connection& to, const std::vector<buffer>& segments);
  std::vector<std::byte> end() const;

 private:
  struct piece {
    block_places where;
    byte_stream::descriptor file;  // of memory that the server does not know
  };
  // Those from `first` on that go together.
  result<piece> lying(shown_memory& shown, const std::vector<buffer>& segments, std::size_t first) const;
  result<piece> copied(shown_memory& shown, const std::vector<buffer>& segments, std::size_t first);
  awaitable<error_code> heard(http_connection& from);

  const stream_begin& about_;
  std::size_t half_;  // of the own memory: a piece of the largest segments
  int under_way_ = 0;
  bool second_ = false;  // half of the own memory
};

// As a chunk of a body; of nothing: its end.
std::string in_chunk(std::span<const std::byte> bytes);

}  // namespace cokv::detail
