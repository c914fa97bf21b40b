// What two workers tell each other before anything else: the first frame of a connection, both ways. Pure.
#pragma once

#include <string>
#include <vector>

#include "cokv/kvstream/namespace_id.hpp"
#include "cokv/runtime/asio.hpp"

namespace cokv::detail {

// A connection that replaces a broken one has a number of its own.
constexpr std::uint32_t most_lane_numbers = 4096;

struct link_hello {
  std::uint64_t session = 0;   // chosen by who connects; of all connections of a link
  std::uint32_t lane = 0;      // which of its connections this is: 0 is the first
  std::uint32_t lanes = 1;     // connections wanted (who connects), or taken (who answers)
  std::uint32_t credits = 0;   // puts and gets that may be under way towards the speaker
  std::uint32_t messages = 0;  // messages that may wait at the speaker
  std::uint64_t chunk = 0;     // the largest payload of a put or data that the speaker takes
  namespace_id ns;             // zeros: any
  std::uint64_t worker = 0;    // the speaker's process, by a random number
  std::uint64_t order = 0;     // counts its links: one with a smaller number is older than `sessions`
  std::string name;            // at most 255 bytes each
  std::string topology;
  // Links that the speaker holds for alive or is about to make, with anybody: older ones with the listener that are not
  // among them are dead.
  std::vector<std::uint64_t> sessions;
  // Of who connects over NCCL: what the two ranks meet by, 256 bytes; else none.
  std::vector<std::byte> meeting;
  friend bool operator==(const link_hello&, const link_hello&) = default;
};

std::vector<std::byte> encode(const link_hello& hello);
// errc::protocol for anything but one hello, counts and sizes beyond reason included.
result<link_hello> decode_hello(std::span<const std::byte> bytes);

}  // namespace cokv::detail
