#include "store/redis/slots.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"

namespace cokv::detail {

std::uint16_t crc16(std::string_view bytes) noexcept {
  std::uint16_t crc = 0;
  for (const char c : bytes) {
    crc = static_cast<std::uint16_t>(crc ^ (static_cast<unsigned char>(c) << 8));
    for (int bit = 0; bit < 8; ++bit) crc = static_cast<std::uint16_t>(crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1);
  }
  return crc;
}

std::uint16_t slot_of(std::string_view key) noexcept {
  if (const auto open = key.find('{'); open != key.npos)
    if (const auto close = key.find('}', open + 1); close != key.npos && close != open + 1)
      key = key.substr(open + 1, close - open - 1);
  return crc16(key) % slot_map::slots;
}

// [[first, last, [host, port, ...], replicas...], ...]
result<slot_map> slot_map::parse(const redis_value& reply, const endpoint& asked) {
  using kind = redis_value::kind;
  if (!reply.is(kind::array)) return errc::protocol;
  slot_map out;
  for (const auto& range : reply.elements) {
    if (!range.is(kind::array) || range.elements.size() < 3) return errc::protocol;
    const auto &first = range.elements[0], &last = range.elements[1], &node = range.elements[2];
    if (!first.is(kind::integer) || !last.is(kind::integer) || first.integer < 0 || first.integer > last.integer ||
        last.integer >= slots)
      return errc::protocol;
    if (!node.is(kind::array) || node.elements.size() < 2 || !node.elements[1].is(kind::integer)) return errc::protocol;
    const auto& host = node.elements[0];
    if (!host.is(kind::string) && !host.is(kind::nil)) return errc::protocol;
    const auto port = node.elements[1].integer;
    if (port <= 0 || port > 65535) return errc::protocol;
    const bool unknown = host.text.empty() || host.text == "?";
    const auto number = out.number_of({unknown ? asked.host : host.text, static_cast<std::uint16_t>(port)});
    if (number == 0) return errc::protocol;
    std::fill(out.owner_.begin() + first.integer, out.owner_.begin() + last.integer + 1, number);
  }
  return out;
}

slot_map slot_map::single(const endpoint& node) {
  slot_map out;
  std::ranges::fill(out.owner_, out.number_of(node));
  return out;
}

void slot_map::move(std::uint16_t slot, const endpoint& to) {
  if (const auto number = number_of(to); number != 0 && slot < slots) owner_[slot] = number;
}

std::uint16_t slot_map::number_of(const endpoint& node) {
  auto at = std::ranges::find(nodes_, node);
  if (at == nodes_.end()) {
    if (nodes_.size() == max_nodes) return 0;
    at = nodes_.insert(nodes_.end(), node);
  }
  return static_cast<std::uint16_t>(at - nodes_.begin() + 1);
}

}  // namespace cokv::detail
