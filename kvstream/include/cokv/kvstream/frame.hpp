// One message about KV on a byte stream: a fixed header with a digest of its own, a payload, and a digest that ties
// both. Pure: bytes in, events out, no I/O. The bytes are in docs/protocol.md; frame_stream.hpp makes streams of them.
//
//     cokv::frame_parser parser(limits);
//     while (!in.empty()) {
//       in = in.subspan(parser.feed(in));                               // any split of the bytes
//       if (parser.at() == frame_parser::state::place) parser.into(target_of(parser.header()));
//       if (parser.at() == frame_parser::state::frame) { use(parser.header()); parser.next(); }
//       if (parser.at() == frame_parser::state::failed) return parser.error();
//     }
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cokv/kvstream/block_key.hpp"
#include "cokv/kvstream/digest.hpp"
#include "cokv/kvstream/geometry.hpp"
#include "cokv/kvstream/namespace_id.hpp"
#include "cokv/runtime/asio.hpp"

namespace cokv {

enum class frame_type : std::uint8_t {
  begin = 1,    // what the stream carries: layout and keys
  segment = 2,  // one layer's part of one block
  missing = 3,  // this block, and so every one after it, does not come (any more)
  end = 4,      // all that was to come came
  error = 5,    // nothing more comes, and why
  ack = 6,      // what the receiver made of a stream
};

struct frame_header {
  frame_type type = frame_type::begin;
  digest_algorithm algorithm = digest_algorithm::xxh3_64;
  namespace_id ns;
  block_key key;  // of the block; zeros when the frame is about the stream
  std::uint32_t layer = 0;
  std::uint32_t block = 0;       // place in the stream's list of keys
  std::uint64_t generation = 0;  // the same in every frame of an exchange, chosen by who begins it
  std::uint64_t sequence = 0;    // 0, 1, 2 ... in a stream
  std::uint64_t offset = 0;      // where in the segment the payload begins
  std::uint64_t length = 0;      // bytes of payload
  friend bool operator==(const frame_header&, const frame_header&) = default;
};

constexpr std::size_t frame_header_bytes = 128;
constexpr std::size_t frame_trailer_bytes = 8;
using frame_head = std::array<std::byte, frame_header_bytes>;
using frame_trailer = std::array<std::byte, frame_trailer_bytes>;

frame_head encode(const frame_header& header);
// errc::digest_mismatch, then errc::protocol (not a frame), errc::unsupported (another version or digest).
result<frame_header> decode(std::span<const std::byte, frame_header_bytes> bytes);

// What follows the payload: the digest over the header and the payload's own digest, so that a payload whose digest is
// known is sent without reading it. All zero for digest_algorithm::none.
frame_trailer seal(const frame_head& head, std::span<const std::byte> payload);
frame_trailer seal(const frame_head& head, std::uint64_t payload_digest);
// The same, copying the payload in the same pass.
frame_trailer seal_copy(const frame_head& head, std::span<std::byte> into, std::span<const std::byte> payload);

// What a receiver lets a stream ask of it. Lengths are compared with these before anything is allocated.
struct frame_limits {
  std::uint32_t max_blocks = 65536;
  std::uint32_t max_layers = geometry::max_layers;
  std::uint64_t max_segment = geometry::max_segment_bytes;
  std::uint64_t max_text = 4096;  // of an error, ack, end or missing frame
  bool unsealed = false;          // streams whose segments have no digest are taken too

  // The largest payload of a type.
  std::uint64_t payload(frame_type type) const noexcept;
};

// Failures as numbers that all versions agree on.
std::uint32_t to_wire(error_code ec) noexcept;
error_code from_wire(std::uint32_t code) noexcept;

class frame_parser {
 public:
  enum class state : std::uint8_t {
    header,   // in a header, or between frames
    place,    // a verified header; payload waits for into(), keep() or discard()
    payload,  // in a payload or its trailer
    frame,    // a whole frame; next() goes on
    failed,   // broken beyond repair: error() says how
  };

  explicit frame_parser(frame_limits limits = {}) : limits_(limits) {}
  frame_parser(const frame_parser&) = delete;
  frame_parser& operator=(const frame_parser&) = delete;

  // Takes bytes from the front of `in` and returns how many: all, or up to where the caller has to act.
  std::size_t feed(std::span<const std::byte> in);

  state at() const noexcept { return state_; }
  const frame_header& header() const noexcept { return header_; }
  // Nothing half-read: where a stream may be over.
  bool between_frames() const noexcept { return state_ == state::header && head_size_ == 0; }
  error_code error() const noexcept { return error_; }

  // In `place`: where the payload goes. into() takes exactly header().length bytes, throws std::logic_error otherwise,
  // and they must live until the frame is whole; keep() allocates them, discard() only digests.
  void into(std::span<std::byte> target);
  void keep();
  void discard();

  // In `payload`: the part of the target that is still to come, so that a socket can read right into it; filled(n) says
  // that its first n bytes are there. Empty while the trailer is read, which goes through feed().
  std::span<std::byte> room() const noexcept;
  void filled(std::size_t n);

  // In `payload`: bytes of it that are still to come, wherever they go.
  std::uint64_t owed() const noexcept { return state_ == state::payload ? header_.length - got_ : 0; }
  bool dropping() const noexcept { return state_ == state::payload && discarded_; }
  // Bytes until a payload is to be placed or the frame is whole.
  std::uint64_t wanted() const noexcept;

  // In `frame`: whether header and payload are what was sent. A damaged payload leaves the framing sound, since the
  // header was verified before, so the stream can go on without that block.
  bool intact() const noexcept { return intact_; }
  // And the payload's own digest; 0 when the frame has none.
  std::uint64_t digest() const noexcept { return payload_digest_; }
  // What keep() kept.
  std::span<const std::byte> payload() const noexcept { return kept_; }
  void next();

  // Bytes held for payloads and headers, for tests of the bound.
  std::size_t memory() const noexcept { return kept_.capacity() + sizeof head_; }

 private:
  std::size_t feed_header(std::span<const std::byte> in);
  std::size_t feed_payload(std::span<const std::byte> in);
  void fail(error_code ec);
  void start_payload(bool discarded);
  bool digests() const noexcept { return header_.algorithm != digest_algorithm::none; }

  frame_limits limits_;
  state state_ = state::header;
  frame_head head_{};
  std::size_t head_size_ = 0;
  frame_header header_;
  digest_state digest_;
  std::span<std::byte> target_;
  bool discarded_ = false;
  std::uint64_t got_ = 0;  // of the payload
  frame_trailer trailer_{};
  std::size_t trailer_size_ = 0;
  bool intact_ = false;
  std::uint64_t payload_digest_ = 0;
  std::vector<std::byte> kept_;
  error_code error_;
};

}  // namespace cokv
