// Reads link frames out of bytes as they come: pure, any split of the bytes gives the same frames. Payloads go where
// the reader says, into scattered memory too, and a socket can read right into it; lengths are compared with a limit
// before anything is allocated.
//
//     in = in.subspan(parser.feed(in));
//     if (parser.at() == link_parser::state::place) parser.into(pieces_of(parser.header()));
//     if (parser.at() == link_parser::state::frame) { use(parser.header()); parser.next(); }
#pragma once

#include <vector>

#include "link/link_frame.hpp"

namespace cokv::detail {

struct link_limits {
  std::uint64_t chunk = std::uint64_t{1} << 20;     // payload of put and data; what a get may ask for
  std::uint64_t message = std::uint64_t{64} << 10;  // of message
  std::uint64_t text = std::uint64_t{64} << 10;     // of hello and goodbye
  std::uint64_t layout = std::uint64_t{4} << 20;    // of grant
  std::uint64_t list = 1024;                        // of places and dones
};

class link_parser {
 public:
  enum class state : std::uint8_t {
    header,   // in a header, or between frames
    place,    // a verified header; its payload waits for into(), keep() or discard()
    payload,  // in a payload or its trailer
    frame,    // a whole frame; next() goes on
    failed,   // broken beyond repair: error() says how
  };

  explicit link_parser(link_limits limits = {}) : limits_(limits) {}
  link_parser(const link_parser&) = delete;
  link_parser& operator=(const link_parser&) = delete;

  // Takes bytes from the front of `in` and returns how many: all, or up to where the caller has to act.
  std::size_t feed(std::span<const std::byte> in);

  state at() const noexcept { return state_; }
  const link_header& header() const noexcept { return header_; }
  error_code error() const noexcept { return error_; }

  // In `place`. into() takes spans of header().length bytes together, which live until the frame is whole (otherwise
  // std::logic_error); keep() allocates them; discard() drops the payload.
  void into(std::vector<std::span<std::byte>> target);
  void keep();
  void discard();
  // In `payload` too: what is still to come is dropped, and the target is not touched any more.
  void drop_rest();

  // In `payload`: what is still to come of it, as long as it is not dropped; filled(n) says that its first n bytes are
  // there. The trailer goes through feed().
  std::uint64_t room() const noexcept { return state_ == state::payload && !dropped_ ? header_.length - got_ : 0; }
  // Appends the first `most` bytes of room, in at most `parts` parts, to a list of buffers. Returns their bytes.
  std::uint64_t list_room(std::uint64_t most, std::size_t parts, std::vector<asio::mutable_buffer>& out) const;
  void filled(std::uint64_t n);

  // In `frame`: whether the payload is what was sent. A dropped one is not; of bytes in their place nothing is known
  // here, and their digest is sealed().
  bool intact() const noexcept { return intact_; }
  std::uint64_t sealed() const noexcept;
  const link_head& head() const noexcept { return head_; }  // of which that digest is, and of what follows it
  bool dropped() const noexcept { return dropped_; }
  std::vector<std::byte>& kept() noexcept { return kept_; }
  void next();

 private:
  std::size_t feed_header(std::span<const std::byte> in);
  std::size_t feed_payload(std::span<const std::byte> in);
  bool digests() const noexcept { return header_.algorithm != digest_algorithm::none; }
  void begin_payload();
  void advance(std::uint64_t n);
  void end_payload();
  void fail(error_code ec);

  link_limits limits_;
  state state_ = state::header;
  link_head head_{};
  std::size_t head_size_ = 0;
  link_header header_;
  digest_state digest_;
  std::vector<std::span<std::byte>> target_;
  std::size_t part_ = 0;      // of the target, the one that is filled now
  std::uint64_t filled_ = 0;  // of that part
  std::uint64_t got_ = 0;     // of the payload
  bool dropped_ = false;
  std::array<std::byte, link_trailer_bytes> trailer_{};
  std::size_t trailer_size_ = 0;
  bool intact_ = false;
  std::vector<std::byte> kept_;
  error_code error_;
};

}  // namespace cokv::detail
