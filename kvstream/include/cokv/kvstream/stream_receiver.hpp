// Receives a stream of blocks to where they belong: frames come in known order and sizes, so one vectored read brings
// many of them, each payload into its own memory, digested while it is in the cache. When something else comes (a block
// that is taken back, an error), what was read is put in a row and parsed as it comes. Pure: it says where to read.
//
//     cokv::stream_receiver in(limits);
//     for (;;) switch (in.next()) {
//       case stream_event::more: {
//         auto n = co_await socket.async_read_some(in.room());
//         in.filled(n);
//         break;
//       }
//       case stream_event::begun: in.expect(memory_of(0)); break;              // of layer 0, one buffer a block
//       case stream_event::arrived: digests[in.block()] = in.digest(); break;
//       case stream_event::layer: deliver(in.layer(), in.good()); in.expect(memory_of(in.layer() + 1)); break;
//       ...
//     }
#pragma once

#include <array>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "cokv/kvstream/frame_stream.hpp"
#include "cokv/runtime/buffer.hpp"

namespace cokv {

class stream_receiver {
 public:
  explicit stream_receiver(frame_limits limits = {}, std::optional<stream_begin> expected = std::nullopt)
      : parser_(limits, std::move(expected)) {}

  // The segments of the next layer that was not expected yet go there: a buffer of the layout's size for each block that
  // is coming(), or for more. A layer may be expected long before it comes, so that one read goes over its border. The
  // memory is held until its layer is over.
  void expect(std::vector<buffer> segments);
  // Lets go of memory that was expected to be filled; nothing can be received any more.
  void abandon() noexcept { memory_.clear(); }
  // Layers that were expected.
  std::uint32_t expected() const noexcept { return expected_; }

  // The next event; `more`: bytes are to be read; `segment`: of a layer that was not expected, which is to be done now.
  stream_event next();
  // Where they are to be read to: never empty, of at most `places` buffers. Nothing is asked for beyond the frame that
  // is coming, or beyond the layers that were expected.
  std::span<const asio::mutable_buffer> room();
  // The first n bytes of room() are there.
  void filled(std::size_t n) { got_ = n; }

  static constexpr std::size_t places = 128;

  // As in stream_parser.
  const stream_begin& about() const noexcept { return parser_.about(); }
  std::uint32_t layer() const noexcept { return parser_.layer(); }
  std::uint32_t block() const noexcept { return parser_.block(); }
  std::uint32_t good() const noexcept { return parser_.good(); }
  std::uint32_t coming() const noexcept { return parser_.coming(); }
  std::uint64_t digest() const noexcept { return parser_.digest(); }
  error_code error() const noexcept { return parser_.error(); }
  const stream_parser& parser() const noexcept { return parser_; }
  // Bytes that were read and not looked at yet: 0 where a stream may end.
  std::size_t unread() const noexcept { return got_ + row_.size() - row_at_; }

 private:
  struct layer_memory {
    std::uint32_t layer;
    std::vector<buffer> segments;
  };

  std::span<std::byte> place_of(std::uint32_t layer, std::uint32_t block) const;
  void plan();
  void add(std::byte* to, std::size_t n) { plan_.push_back(asio::buffer(to, n)); }
  bool as_planned() const;
  void put_in_a_row();
  void take(std::size_t n);

  stream_parser parser_;
  std::deque<layer_memory> memory_;  // of layers that are not over
  std::uint32_t expected_ = 0;

  // Where the bytes that come are to lie, from plan_at_ on: payloads and, between them, heads and trailers in ends_.
  std::vector<asio::mutable_buffer> plan_;
  std::size_t plan_at_ = 0;
  bool payload_first_ = false;
  std::vector<std::byte> ends_;
  std::vector<std::byte> aside_;  // for what is dropped
  std::array<asio::mutable_buffer, places> room_;
  std::size_t got_ = 0;         // bytes that were read there and not looked at yet
  std::vector<std::byte> row_;  // bytes that were read to the wrong places, from row_at_ on
  std::size_t row_at_ = 0;
};

}  // namespace cokv
