// The framing of a chunked HTTP/1.1 body (RFC 9112, section 7.1), apart from its bytes: a state machine that eats the
// lines between chunks and says how many bytes of body come next, so that these can be read straight to where they
// belong. Every line is bounded before it is kept.
//
//     chunk_decoder framing;
//     while (!framing.done())
//       if (framing.data() == 0) received.consume(*framing.feed(received.view()));
//       else framing.take(read_into(place, framing.data()));
#pragma once

#include <cstdint>
#include <string_view>

#include "cokv/runtime/asio.hpp"

namespace cokv::cache {

class chunk_decoder {
 public:
  // Bytes of body that come next; 0 while a line has to be read first.
  std::uint64_t data() const noexcept { return data_; }
  // So many of them were read.
  void take(std::uint64_t n) noexcept;
  // The last chunk and its trailer have passed.
  bool done() const noexcept { return state_ == state::done; }
  // Eats framing up to the next byte of body or the end; returns how much that was. errc::protocol: not framing.
  result<std::size_t> feed(std::string_view received);

 private:
  enum class state {
    size,
    extension,
    size_end,
    data,
    data_cr,
    data_lf,
    trailer,
    trailer_line,
    trailer_lf,
    end_lf,
    done
  };
  bool step(char c) noexcept;

  state state_ = state::size;
  std::uint64_t data_ = 0;
  std::uint64_t size_ = 0;
  unsigned digits_ = 0;
  std::size_t extra_ = 0;  // bytes of extensions and trailers so far
};

}  // namespace cokv::cache
