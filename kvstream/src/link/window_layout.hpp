// Where a window's bytes lie in memory that two processes of one machine share: what a grant says. Pure; the bytes are
// in docs/protocol.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cokv/runtime/asio.hpp"

namespace cokv::detail {

struct window_layout {
  struct piece {
    std::uint32_t memory = 0;  // by number
    std::uint64_t offset = 0, bytes = 0;
    friend bool operator==(const piece&, const piece&) = default;
  };
  std::vector<std::uint32_t> forgotten;  // numbers of memory that is not there any more
  std::vector<std::uint32_t> passed;     // numbers of memory that is passed with this grant, in this order
  std::vector<piece> pieces;             // one behind the other, none empty
  friend bool operator==(const window_layout&, const window_layout&) = default;
};

constexpr std::size_t most_passed = 256;
constexpr std::size_t most_layout_bytes = std::size_t{4} << 20;

std::vector<std::byte> encode(const window_layout& layout);
// errc::protocol for anything but one layout.
result<window_layout> decode_layout(std::span<const std::byte> bytes);

}  // namespace cokv::detail
