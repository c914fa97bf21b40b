// The slots of a Redis Cluster: which one a key is in, and which node serves it. Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/net.hpp"
#include "store/redis/value.hpp"

namespace cokv::detail {

// CRC-16/XMODEM (polynomial 0x1021, from 0) of what stands between the key's first '{' and the '}' after it, if that is not
// nothing, else of the whole key; modulo 16,384. https://redis.io/docs/reference/cluster-spec
std::uint16_t crc16(std::string_view bytes) noexcept;
std::uint16_t slot_of(std::string_view key) noexcept;

class slot_map {
 public:
  static constexpr std::uint16_t slots = 16384;
  static constexpr std::size_t max_nodes = 1024;

  // Of an answer to CLUSTER SLOTS, `asked` being who gave it: replicas are left out, an empty host is the asked one's.
  // errc::protocol when it is none.
  static result<slot_map> parse(const redis_value& reply, const endpoint& asked);
  // One node for everything.
  static slot_map single(const endpoint& node);

  // Null where nobody serves the slot.
  const endpoint* node_of(std::uint16_t slot) const noexcept {
    return slot < owner_.size() && owner_[slot] != 0 ? &nodes_[owner_[slot] - 1u] : nullptr;
  }
  void move(std::uint16_t slot, const endpoint& to);
  const std::vector<endpoint>& nodes() const noexcept { return nodes_; }

 private:
  std::uint16_t number_of(const endpoint& node);  // from 1; 0: too many

  std::vector<endpoint> nodes_;
  std::vector<std::uint16_t> owner_ = std::vector<std::uint16_t>(slots);
};

}  // namespace cokv::detail
