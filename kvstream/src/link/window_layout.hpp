// Where a window's bytes lie in memory that two processes of one machine reach: what a grant says. Pure; the bytes are
// in docs/protocol.md.
#pragma once

#include <array>
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
  struct on_device {
    std::uint32_t memory = 0;
    std::uint64_t bytes = 0;
    std::array<std::byte, 64> ipc{};
    friend bool operator==(const on_device&, const on_device&) = default;
  };
  std::vector<std::uint32_t> forgotten;  // numbers of memory that is not there any more
  std::vector<std::uint32_t> passed;     // numbers of memory that is passed with this grant, in this order
  std::vector<piece> pieces;             // one behind the other, none empty
  std::vector<on_device> opened = {};    // memory of a device, named with this grant by its CUDA IPC handle
  friend bool operator==(const window_layout&, const window_layout&) = default;
};

constexpr std::size_t most_passed = 256;
constexpr std::size_t most_layout_bytes = std::size_t{4} << 20;

std::vector<std::byte> encode(const window_layout& layout);
// errc::protocol for anything but one layout.
result<window_layout> decode_layout(std::span<const std::byte> bytes);

}  // namespace cokv::detail
