// A stream of frames that carries blocks: begin, their segments layer by layer, end. A receiver can tell a complete
// stream from a cut one, and a missing or damaged block from a broken stream: it ends the prefix, the rest goes on.
// Pure state machines for both sides; the bytes and the rules are in docs/protocol.md.
//
//     cokv::stream_writer out({ns, generation, false, layout, keys});
//     send(out.begin());
//     for (layer...) for (block...) { auto head = out.segment(layer, block); send(head, data, cokv::seal(head, data));
//     } send(out.end());
//
//     cokv::stream_parser parser(limits);
//     while (!in.empty()) switch (parser.next(in)) {                     // takes bytes from the front of in
//       case cokv::stream_event::segment: parser.into(buffer_of(parser.layer(), parser.block())); break;
//       case cokv::stream_event::layer: deliver(parser.layer(), parser.good()); break;
//       ...
//     }
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cokv/kvstream/frame.hpp"

namespace cokv {

// What a begin frame says.
struct stream_begin {
  namespace_id ns;
  std::uint64_t generation = 0;
  bool deferred = false;
  block_layout layout;
  std::vector<block_key> keys;
  digest_algorithm digest = digest_algorithm::xxh3_64;  // of the segments; none: nobody looks whether they are right
  friend bool operator==(const stream_begin&, const stream_begin&) = default;
};

// Bytes of a complete stream of all these blocks, for a Content-Length.
std::uint64_t stream_bytes(const block_layout& layout, std::size_t blocks) noexcept;

// The sender's side: makes frames in the order they must be sent in. Segments come layer by layer and, in a layer,
// block by block; missing() may come between any two and takes its block and all after it out of what is still to come.
// Throws std::logic_error for any other order.
class stream_writer {
 public:
  explicit stream_writer(stream_begin about);

  const stream_begin& about() const noexcept { return about_; }
  std::vector<std::byte> begin();
  // Send this, then exactly the segment's bytes, then seal() of both.
  frame_head segment(std::uint32_t layer, std::uint32_t block);
  std::vector<std::byte> missing(std::uint32_t block, error_code why);
  std::vector<std::byte> end();
  // Instead of anything that was still to come.
  std::vector<std::byte> error(error_code why, std::string_view text);
  // Blocks that are still to come whole.
  std::uint32_t good() const noexcept { return good_; }

 private:
  std::vector<std::byte> whole(frame_type type, std::uint32_t block, std::span<const std::byte> payload);

  stream_begin about_;
  std::uint64_t sequence_ = 0;
  std::uint32_t layer_ = 0;
  std::uint32_t block_ = 0;
  std::uint32_t good_ = 0;
};

// The whole answer of a receiver: what became of the stream, and how many of its blocks it took.
std::vector<std::byte> ack_frame(const namespace_id& ns, std::uint64_t generation, error_code what,
                                 std::uint32_t blocks);

enum class stream_event : std::uint8_t {
  more,     // all bytes taken, nothing to do
  begun,    // about() is there
  segment,  // layer(), block(): call into() or discard()
  arrived,  // that segment is whole and intact
  damaged,  // it was not: the block and all after it are not good any more
  missing,  // the sender took block() and all after it back
  layer,    // all that comes of layer() was there
  ended,    // complete
  acked,    // the stream was an ack: ack() is there
  failed,   // nothing more: error()
};

// The receiver's side. Segments of blocks that are not good any more are taken and dropped without an event.
class stream_parser {
 public:
  struct ack_body {
    error_code what;
    std::uint32_t blocks = 0;
  };

  // With `expected`, a begin frame that says anything else is refused: another namespace or layout as
  // errc::namespace_mismatch, another digest as errc::unsupported, the rest as errc::protocol. `deferred` is not compared.
  explicit stream_parser(frame_limits limits = {}, std::optional<stream_begin> expected = std::nullopt);

  // The next event, bytes taken from the front of `in`. Ask again until `more`, bytes or not: an event may be left.
  stream_event next(std::span<const std::byte>& in);

  const stream_begin& about() const noexcept { return about_; }
  // Of the current segment, and after `layer` of the layer that is done.
  std::uint32_t layer() const noexcept { return event_layer_; }
  std::uint32_t block() const noexcept { return event_block_; }
  // Leading blocks of which nothing is missing or damaged so far.
  std::uint32_t good() const noexcept { return good_; }
  std::uint32_t layers_done() const noexcept { return layer_; }
  // Leading blocks that the sender still sends, and which of them the next segment is of.
  std::uint32_t coming() const noexcept { return coming_; }
  std::uint32_t next_block() const noexcept { return block_; }
  // Of the segment that `arrived`; 0 when the stream has none.
  std::uint64_t digest() const noexcept { return digest_; }

  // For `segment`; see frame_parser. into() takes exactly the layout's bytes of the layer.
  void into(std::span<std::byte> target) { frames_.into(target); }
  void discard() { frames_.discard(); }
  std::span<std::byte> room() const noexcept { return frames_.room(); }
  void filled(std::size_t n) { frames_.filled(n); }
  const frame_parser& frame() const noexcept { return frames_; }

  const ack_body& ack() const noexcept { return ack_; }
  error_code error() const noexcept { return error_; }
  // Whether error() is what the peer's error frame said, and its text; else the fault was found here.
  bool from_peer() const noexcept { return from_peer_; }
  const std::string& peer_text() const noexcept { return text_; }
  bool complete() const noexcept { return phase_ == phase::done; }
  // For the end of the bytes: success when the stream was complete, else why not; cut short is errc::protocol.
  error_code finish() const noexcept;
  std::size_t memory() const noexcept { return frames_.memory(); }

 private:
  enum class phase : std::uint8_t { start, blocks, done, failed };

  stream_event fail(error_code ec);
  stream_event on_header();
  stream_event on_frame();
  stream_event on_begin();
  stream_event on_segment();
  stream_event on_missing();
  stream_event on_end();
  stream_event on_error();
  stream_event on_ack();
  bool layer_over() const noexcept { return phase_ == phase::blocks && coming_ > 0 && block_ >= coming_; }

  frame_limits limits_;
  std::optional<stream_begin> expected_;
  frame_parser frames_;
  phase phase_ = phase::start;
  stream_begin about_;
  std::uint64_t sequence_ = 0;
  std::uint32_t layer_ = 0;  // of the next segment
  std::uint32_t block_ = 0;
  std::uint32_t coming_ = 0;  // blocks that the sender still sends
  std::uint32_t good_ = 0;
  std::uint32_t event_layer_ = 0;
  std::uint32_t event_block_ = 0;
  bool dropping_ = false;
  std::uint64_t digest_ = 0;
  ack_body ack_;
  std::string text_;
  bool from_peer_ = false;
  error_code error_;
};

}  // namespace cokv
