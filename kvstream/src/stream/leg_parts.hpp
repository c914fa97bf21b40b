// A leg as what moves at once: a layer of a sequence each, in the order in which they lie in the leg's window.
#pragma once

#include <vector>

#include "cokv/kvstream/kv_stream.hpp"

namespace cokv::detail {

struct leg_part {
  std::uint32_t layer = 0;  // as the worker numbers it
  std::uint32_t sequence = 0;
  std::uint64_t offset = 0;  // in the leg
  slice what;
};

struct leg_parts {
  std::vector<leg_part> parts;  // those that have bytes
  std::uint64_t bytes = 0;
  std::uint64_t tokens = 0;  // digest of the sequences' lengths
};

// `end`: which of the leg's two ends the side is. Throws std::out_of_range, std::invalid_argument for a side that does
// not fit to its route.
leg_parts parts_of(const stream_side& side, const leg& of, const leg_end& end);

}  // namespace cokv::detail
