#include "link/link_frame.hpp"

#include "cokv/runtime/error.hpp"
#include "detail/bytes.hpp"

namespace cokv::detail {
namespace {

constexpr std::uint32_t magic = 0x4c766b63;  // "ckvL"
constexpr std::size_t digest_at = link_header_bytes - 8;

constexpr std::size_t place_bytes = 24, request_bytes = 8;

}  // namespace

std::vector<std::byte> encode(std::span<const put_place> places) {
  std::vector<std::byte> out(places.size() * place_bytes);
  auto* at = out.data();
  for (const auto& p : places) {
    put(at, p.request);
    put(at + 8, p.offset);
    put(at + 16, p.length);
    at += place_bytes;
  }
  return out;
}

result<std::vector<put_place>> decode_places(std::span<const std::byte> bytes) {
  const auto n = bytes.size() / place_bytes;
  if (n == 0 || n > most_listed || bytes.size() % place_bytes != 0) return errc::protocol;
  std::vector<put_place> out(n);
  const auto* at = bytes.data();
  for (auto& p : out) {
    p = {get<std::uint64_t>(at), get<std::uint64_t>(at + 8), get<std::uint64_t>(at + 16)};
    if (p.length == 0 || p.length > UINT64_MAX / most_listed) return errc::protocol;
    at += place_bytes;
  }
  return out;
}

std::vector<std::byte> encode_requests(std::span<const put_place> answered) {
  std::vector<std::byte> out(answered.size() * request_bytes);
  for (std::size_t i = 0; i < answered.size(); ++i) put(out.data() + i * request_bytes, answered[i].request);
  return out;
}

result<std::vector<std::uint64_t>> decode_requests(std::span<const std::byte> bytes) {
  const auto n = bytes.size() / request_bytes;
  if (n == 0 || n > most_listed || bytes.size() % request_bytes != 0) return errc::protocol;
  std::vector<std::uint64_t> out(n);
  for (std::size_t i = 0; i < n; ++i) out[i] = get<std::uint64_t>(bytes.data() + i * request_bytes);
  return out;
}

link_head encode(const link_header& h) noexcept {
  link_head out{};
  auto* at = out.data();
  put(at, magic);
  at[4] = std::byte{link_version};
  at[5] = static_cast<std::byte>(h.type);
  at[6] = static_cast<std::byte>(h.algorithm);
  at[7] = h.listed ? std::byte{3} : h.carried ? std::byte{2} : static_cast<std::byte>(h.in_place);
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
  if (type < 1 || type > 15 || at[7] > std::byte{3} || get<std::uint32_t>(at + 12) != 0) return errc::protocol;
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
  h.listed = at[7] == std::byte{3};
  if (h.listed && (h.type != link_type::put || h.length == 0)) return errc::protocol;
  // What decides where bytes go, and what becomes of requests, is digested whatever the bytes are.
  const bool lists = h.type == link_type::places || h.type == link_type::dones;
  if (lists && (h.length == 0 || h.algorithm != digest_algorithm::xxh3_64)) return errc::protocol;
  return h;
}

}  // namespace cokv::detail
