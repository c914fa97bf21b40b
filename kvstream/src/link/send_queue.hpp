// The frames that wait to be written to one connection, as the buffers of the next write: many small frames in one
// system call, a large one in pieces that are digested just before they are written, while they are in the cache. Puts
// into one window that wait here together, and answers, become one frame; messages go before bytes of windows that wait.
// Pure. Payloads are referenced until their last byte is written.
//
//     queue.push({header, pieces});
//     auto n = co_await stream.async_write_some(queue.next(256 << 10));
//     queue.written(n);
#pragma once

#include <list>
#include <span>
#include <vector>

#include "cokv/runtime/buffer.hpp"
#include "link/link_frame.hpp"

namespace cokv::detail {

struct outgoing_frame {
  link_header header;
  std::vector<buffer> payload = {};       // together header.length bytes
  std::shared_ptr<void> keep_alive = {};  // let go when the frame is written
  bool answer = false;                    // to a request of the peer
  std::uint64_t sealed = 0;               // of bytes in their place: the digest
};

// Bytes that a frame owns.
std::vector<buffer> payload_of(std::vector<std::byte> bytes);

class send_queue {
 public:
  // Puts of so many bytes together may become one; 0: what is pushed stays as it is.
  void join_up_to(std::uint64_t most) noexcept { most_joined_ = most; }
  void push(outgoing_frame frame);
  void push(const link_header& header, buffer payload);    // of one piece
  void answer(std::uint64_t request, std::uint32_t code);  // done, of a request of the peer

  bool empty() const noexcept { return items_.empty(); }
  std::size_t size() const noexcept { return items_.size(); }
  std::uint64_t bytes() const noexcept { return bytes_; }  // not written yet
  // What has no need of company waits behind nothing but bytes that are in place already.
  bool held_up() const noexcept { return in_place_ > 0 && !items_.front().frame.header.in_place; }
  // With what they stand for: the peer digests as much as if it were sent.
  std::uint64_t weight() const noexcept { return bytes_ + in_place_; }

  // The next at most `most` bytes to write, in at most 64 buffers; valid until the queue is changed.
  std::span<const asio::const_buffer> next(std::uint64_t most);
  // What owns the payloads among them.
  std::shared_ptr<void> listed() const;
  // The first n of those have been written. Returns how many answers are whole with that.
  std::uint32_t written(std::uint64_t n);

  // Takes a frame out of the queue if none of its bytes has been listed.
  bool withdraw(link_type type, std::uint64_t request);
  void keep_begun();  // drops all but what a write has begun, and answers without a payload
  void clear();

 private:
  struct item {
    outgoing_frame frame;
    link_head head;
    std::array<std::byte, link_trailer_bytes> trailer{};
    std::uint64_t total = 0;        // bytes of header, payload and trailer
    std::uint64_t digested = 0;     // of the payload
    std::size_t piece = 0;          // the first that is not written whole,
    std::uint64_t piece_begin = 0;  // and where in the payload it begins
    bool listed = false;
    bool sealed = false;
    std::vector<put_place> joined;             // of several puts or answers,
    std::vector<std::uint32_t> pieces;         // so many pieces of the payload each,
    std::vector<std::shared_ptr<void>> alive;  // and what each keeps alive until the frame begins; none if none does
    std::vector<std::byte> before;             // the frame with their places
  };
  item* last_alike(const link_header& header, std::size_t pieces, bool answer);
  void join(item& i, const link_header& header, std::size_t pieces, std::shared_ptr<void> keep_alive);
  void add(outgoing_frame frame);
  void put_ahead();
  void count(item& i);
  static void begin(item& i);
  void pop();
  void list(const std::byte* data, std::uint64_t n);
  bool withdraw_joined(item& i, std::uint64_t request);
  void digest(item& i, std::uint64_t upto);

  std::list<item> items_;   // buffers of a write under way point into them
  std::list<item> spare_;   // whose lists have room already
  std::uint64_t sent_ = 0;  // of the front item
  std::uint64_t bytes_ = 0;
  std::uint64_t in_place_ = 0;
  std::uint64_t most_joined_ = 0;
  digest_state digest_;  // of the last listed item: items are listed one after the other
  std::vector<asio::const_buffer> list_;
};

}  // namespace cokv::detail
