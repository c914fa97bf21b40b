// What the workers of a ring say to each other about copies, as messages of a link (docs/protocol.md, "Copies in a
// ring"). A codec without I/O; what a message asks for is judged by whoever gets it.
#pragma once

#include <cstdint>
#include <span>

#include "cokv/kvstream/id256.hpp"
#include "cokv/kvstream/peer_link.hpp"

namespace cokv::detail {

enum class replica_type : std::uint8_t {
  open = 1,     // keep this worker's KV of a microbatch, at most `bytes`; `steps` of it are right where they are there
  room = 2,     // answers open: put what comes into `window`; the first `steps` are there, `bytes` in all
  stored = 3,   // a step more was put: now `steps`, which end at `bytes`
  kept = 4,     // answers stored: `steps` are kept
  forget = 5,   // the microbatch is over; not answered
  fetch = 6,    // the first `steps`, of `bytes`, are wanted back
  copy = 7,     // answers fetch: get them from `window`
  release = 8,  // they were got; not answered
};

struct replica_message {
  replica_type type = replica_type::open;
  std::uint32_t code = 0;  // of answers, an error as frame.hpp's to_wire() numbers it; 0 elsewhere
  std::uint32_t steps = 0;
  std::uint64_t epoch = 0;
  std::uint64_t owner = 0;  // the worker whose KV it is
  std::uint64_t microbatch = 0;
  std::uint64_t bytes = 0;
  window_ref window;
  id256 tag;  // of stored: what the owner says of the step; zeros elsewhere
  friend bool operator==(const replica_message&, const replica_message&) = default;
};

constexpr std::uint8_t replica_version = 2;
constexpr std::size_t replica_message_bytes = 104;

link_message encode(const replica_message& m);
// errc::unsupported for another version, errc::protocol for anything else that encode() does not make.
result<replica_message> decode_replica(std::span<const std::byte> bytes);

}  // namespace cokv::detail
