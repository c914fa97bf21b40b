// One message of a link between two workers: 64 bytes of header with a digest of their own, a payload, and a digest
// over both. Pure; the bytes are in docs/protocol.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cokv/kvstream/digest.hpp"
#include "cokv/runtime/asio.hpp"

namespace cokv::detail {

enum class link_type : std::uint8_t {
  hello = 1,    // who speaks, and what it can take; the first frame of a connection, both ways
  put = 2,      // the payload goes to a place of a window
  get = 3,      // a place of a window is asked for
  data = 4,     // what a get asked for
  done = 5,     // what became of a put, a get or a message: `code`
  message = 6,  // of the application
  ping = 7,     // answered by done
  goodbye = 8,  // nothing more comes, and why: `code` and a text
  fence = 9,    // connection number `window` is given up: answered when nothing of it has an effect any more
  commit = 10,  // everything that was to come into the window came
  open = 11,    // the memory of a window is asked for, to be accessed in place; `code`: how
  grant = 12,   // what answers that: where in which memory the window lies; memory itself is passed beside the bytes
  recall = 13,  // of what was granted: answered when it is not touched any more; `code`: as in open
  places = 14,  // of several puts, whose bytes one frame brings that follows
  dones = 15,   // several done of the same `code`
};

struct link_header {
  link_type type = link_type::done;
  digest_algorithm algorithm = digest_algorithm::none;  // of the payload; of a get: wanted of its data
  std::uint32_t code = 0;                               // an error as frame.hpp's to_wire() numbers it
  std::uint64_t request = 0;                            // chosen by who asks, the same in the answer
  std::uint64_t window = 0, generation = 0, offset = 0;
  std::uint64_t length = 0;  // bytes of payload; of a get: bytes asked for
  bool in_place = false;     // of put, get and data: who puts or gets copies by itself, no payload is sent
  bool carried = false;      // of put and data: the bytes come beside the connection; of a get: they may
  bool listed = false;       // of put: these are the bytes of so many puts as `offset` says, by the last places
  friend bool operator==(const link_header&, const link_header&) = default;

  bool has_payload() const noexcept { return type != link_type::get && length > 0 && !in_place && !carried; }
  // Of a payload, or of the bytes in their place.
  bool has_trailer() const noexcept {
    return type != link_type::get && length > 0 && algorithm != digest_algorithm::none;
  }
};

// In place, without a digest: nobody on the way holds or looks at the bytes, and devices are fast.
constexpr std::uint64_t most_by_device = std::uint64_t{64} << 20;

constexpr std::uint8_t link_version = 1;
constexpr std::size_t link_header_bytes = 64;
constexpr std::size_t link_trailer_bytes = 8;
using link_head = std::array<std::byte, link_header_bytes>;

// One put of several: of the payload of `places`.
struct put_place {
  std::uint64_t request = 0, offset = 0, length = 0;
  friend bool operator==(const put_place&, const put_place&) = default;
};
constexpr std::size_t most_listed = 32;  // puts in one frame, and answers

std::vector<std::byte> encode(std::span<const put_place> places);
// errc::protocol: none, too many, one without bytes, or more than a window can hold.
result<std::vector<put_place>> decode_places(std::span<const std::byte> bytes);
// Of the payload of `dones`.
std::vector<std::byte> encode_requests(std::span<const put_place> answered);
result<std::vector<std::uint64_t>> decode_requests(std::span<const std::byte> bytes);

link_head encode(const link_header& header) noexcept;
// errc::digest_mismatch, then errc::protocol (not a frame), errc::unsupported (another version or digest).
result<link_header> decode_link(std::span<const std::byte, link_header_bytes> bytes) noexcept;

}  // namespace cokv::detail
