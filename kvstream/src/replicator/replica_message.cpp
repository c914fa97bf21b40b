#include "replicator/replica_message.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"
#include "detail/bytes.hpp"

namespace cokv::detail {
namespace {

constexpr std::uint32_t magic = 0x52766b63;  // "ckvR"

bool answers(replica_type t) { return t == replica_type::room || t == replica_type::kept || t == replica_type::copy; }

// What a type has no use for is zero, so that a later version may give it a meaning.
bool tidy(const replica_message& m) {
  const bool granted = (m.type == replica_type::room || m.type == replica_type::copy) && m.code == 0;
  if (m.code != 0 && !answers(m.type)) return false;
  if (m.tag != id256() && m.type != replica_type::stored) return false;
  return granted || m.window == window_ref{};
}

}  // namespace

link_message encode(const replica_message& m) {
  link_message out(replica_message_bytes);
  auto* at = out.data();
  put(at, magic);
  at[4] = std::byte{replica_version};
  at[5] = static_cast<std::byte>(m.type);
  put(at + 8, m.code);
  put(at + 12, m.steps);
  put(at + 16, m.epoch);
  put(at + 24, m.owner);
  put(at + 32, m.microbatch);
  put(at + 40, m.bytes);
  put(at + 48, m.window.id);
  put(at + 56, m.window.generation);
  put(at + 64, m.window.size);
  std::ranges::copy(m.tag.bytes, at + 72);
  return out;
}

result<replica_message> decode_replica(std::span<const std::byte> bytes) {
  const auto* at = bytes.data();
  if (bytes.size() < 6 || get<std::uint32_t>(at) != magic) return errc::protocol;
  if (at[4] != std::byte{replica_version}) return errc::unsupported;
  const auto type = std::to_integer<std::uint8_t>(at[5]);
  if (bytes.size() != replica_message_bytes || type < 1 || type > 8 || get<std::uint16_t>(at + 6) != 0)
    return errc::protocol;
  replica_message m;
  m.type = static_cast<replica_type>(type);
  m.code = get<std::uint32_t>(at + 8);
  m.steps = get<std::uint32_t>(at + 12);
  m.epoch = get<std::uint64_t>(at + 16);
  m.owner = get<std::uint64_t>(at + 24);
  m.microbatch = get<std::uint64_t>(at + 32);
  m.bytes = get<std::uint64_t>(at + 40);
  m.window = {get<std::uint64_t>(at + 48), get<std::uint64_t>(at + 56), get<std::uint64_t>(at + 64)};
  std::copy_n(at + 72, m.tag.bytes.size(), m.tag.bytes.begin());
  if (!tidy(m)) return errc::protocol;
  return m;
}

}  // namespace cokv::detail
