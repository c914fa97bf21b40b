#include "link/link_frame.hpp"

#include "cokv/runtime/error.hpp"
#include "detail/bytes.hpp"

namespace cokv::detail {
namespace {

constexpr std::uint32_t magic = 0x4c766b63;  // "ckvL"
constexpr std::size_t digest_at = link_header_bytes - 8;

}  // namespace

link_head encode(const link_header& h) noexcept {
  link_head out{};
  auto* at = out.data();
  put(at, magic);
  at[4] = std::byte{link_version};
  at[5] = static_cast<std::byte>(h.type);
  at[6] = static_cast<std::byte>(h.algorithm);
  at[7] = h.carried ? std::byte{2} : static_cast<std::byte>(h.in_place);
  put(at + 8, h.code);
  put(at + 16, h.request);
  put(at + 24, h.window);
  put(at + 32, h.generation);
  put(at + 40, h.offset);
  put(at + 48, h.length);
  put(at + digest_at, digest_of({at, digest_at}));
  return out;
}

result<link_header> decode_link(std::span<const std::byte, link_header_bytes> bytes) noexcept {
  const auto* at = bytes.data();
  if (get<std::uint32_t>(at) != magic) return errc::protocol;
  if (get<std::uint64_t>(at + digest_at) != digest_of({at, digest_at})) return errc::digest_mismatch;
  if (at[4] != std::byte{link_version}) return errc::unsupported;
  const auto type = std::to_integer<std::uint8_t>(at[5]), algorithm = std::to_integer<std::uint8_t>(at[6]);
  if (type < 1 || type > 13 || at[7] > std::byte{2} || get<std::uint32_t>(at + 12) != 0) return errc::protocol;
  if (algorithm > static_cast<std::uint8_t>(digest_algorithm::xxh3_64)) return errc::unsupported;
  link_header h;
  h.type = static_cast<link_type>(type);
  h.algorithm = static_cast<digest_algorithm>(algorithm);
  h.code = get<std::uint32_t>(at + 8);
  h.request = get<std::uint64_t>(at + 16);
  h.window = get<std::uint64_t>(at + 24);
  h.generation = get<std::uint64_t>(at + 32);
  h.offset = get<std::uint64_t>(at + 40);
  h.length = get<std::uint64_t>(at + 48);
  const bool bare = h.type == link_type::done || h.type == link_type::ping || h.type == link_type::fence ||
                    h.type == link_type::commit || h.type == link_type::open || h.type == link_type::recall;
  if (bare && h.length != 0) return errc::protocol;
  h.in_place = at[7] == std::byte{1};
  const bool may = h.type == link_type::put || h.type == link_type::get || h.type == link_type::data;
  h.carried = at[7] == std::byte{2};
  if ((h.in_place || h.carried) && !may) return errc::protocol;
  if (h.carried && (h.length == 0 || h.algorithm != digest_algorithm::none)) return errc::protocol;
  return h;
}

}  // namespace cokv::detail
