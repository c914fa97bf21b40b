// What the scheduler knows of a request.
#pragma once

#include <utility>

#include "cokv/engine/scheduler.hpp"

namespace cokv {

struct scheduler::entry {
  request_id id = 0;
  std::uint64_t arrival = 0;
  std::int64_t turn = 0;
  std::int32_t priority = 0;
  state where = state::waiting;
  bool admitted_before = false;
  bool asking = false;        // found() will tell
  std::uint32_t outside = 0;  // leading tokens of which arrived() will tell: nothing is computed before
  std::vector<token_id> tokens;
  std::vector<block_index> blocks;
  std::uint32_t prompt = 0;
  std::uint32_t limit = 0;      // the sequence is complete at this length
  std::uint32_t loadable = 0;   // leading tokens that a slower tier holds
  std::uint32_t computed = 0;   // leading tokens whose KV is in blocks, or on the host of a parked one
  std::uint32_t loading = 0;    // tokens of the load in flight
  std::uint32_t along = 0;      // tokens that are computed along with it
  std::uint32_t scheduled = 0;  // tokens of the step in flight
  std::uint32_t cached = 0;
  std::uint32_t unknown = 0;  // placeholders at the end of tokens
  std::size_t lacking = 0;    // blocks that it was not let in for

  std::vector<block_index> host;
  std::uint32_t on_host = 0;  // leading tokens whose KV is there
  std::uint32_t flying = 0;   // steps in flight that compute it
  std::uint64_t planned = 0;  // the step that computed it last
  std::uint32_t stayed = 0;   // steps that decoded it since it came to the device
  std::uint64_t since = 0;    // the step at which it began to leave, or to come
  bool moving = false;        // a copy of it is under way
  bool torn = false;          // the copy that was to bring it in failed

  std::uint32_t remaining() const noexcept { return static_cast<std::uint32_t>(tokens.size()) - computed; }
};

inline constexpr auto by_turn = [](const auto* a, const auto* b) {
  return std::pair(a->turn, a->arrival) < std::pair(b->turn, b->arrival);
};

}  // namespace cokv
