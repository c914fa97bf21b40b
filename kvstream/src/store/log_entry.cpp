#include "store/log_entry.hpp"

#include <algorithm>
#include <cstring>

#include "detail/bytes.hpp"

namespace cokv::detail {
namespace {

constexpr std::string_view magic = "cklg";
constexpr std::uint16_t version = 4, without_tenants = 3;
constexpr std::string_view suffix = ".log";
constexpr std::size_t record_fixed = 64;  // of a record's body, before its tables
constexpr std::size_t member_bytes = 36;

std::size_t padded(std::size_t n) { return (n + log_entry_head - 1) / log_entry_head * log_entry_head; }

}  // namespace

std::uint64_t log_extent::segment_at(std::uint32_t layer, std::uint32_t place) const noexcept {
  std::uint64_t before = 0;
  for (std::uint32_t l = 0; l < layer; ++l) before += stride(l);
  return at + before * places + stride(layer) * place;
}

std::uint64_t log_extent::bytes() const noexcept { return log_block_bytes(*layout, alignment) * places; }

std::optional<std::size_t> log_record::find(const log_member& m) const {
  const auto at = std::ranges::lower_bound(blocks, m.place, {}, &log_member::place);
  if (at == blocks.end() || *at != m) return std::nullopt;
  return static_cast<std::size_t>(at - blocks.begin());
}

std::uint64_t log_block_bytes(const block_layout& layout, std::uint32_t alignment) noexcept {
  std::uint64_t bytes = 0;
  for (auto s : layout.segments) bytes += (s + alignment - 1) & ~std::uint64_t{alignment - 1};
  return bytes;
}

std::size_t log_record_bytes(std::size_t layers, std::size_t blocks, std::size_t tenant) noexcept {
  return log_entry_head + padded(record_fixed + 8 * layers + blocks * (member_bytes + 8 * layers) + tenant);
}

std::vector<std::byte> encode_log_body(const log_record& r) {
  const auto layers = r.extent.layout->segments.size();
  std::vector<std::byte> out(log_record_bytes(layers, r.blocks.size(), r.tenant.size()) - log_entry_head);
  auto* at = out.data();
  std::copy(r.ns.bytes.begin(), r.ns.bytes.end(), at);
  put(at + 32, r.extent.at);
  put(at + 40, static_cast<std::uint32_t>(layers));
  put(at + 44, r.extent.places);
  put(at + 48, static_cast<std::uint32_t>(r.blocks.size()));
  put(at + 52, r.extent.alignment);
  put(at + 56, static_cast<std::uint32_t>(r.digest));
  put(at + 60, static_cast<std::uint32_t>(r.tenant.size()));
  at += record_fixed;
  for (auto s : r.extent.layout->segments) put(at, s), at += 8;
  for (const auto& b : r.blocks) {
    put(at, b.place);
    std::copy(b.key.bytes.begin(), b.key.bytes.end(), at + 4);
    at += member_bytes;
  }
  for (auto d : r.digests) put(at, d), at += 8;
  std::ranges::copy(std::as_bytes(std::span(r.tenant)), at);
  return out;
}

std::vector<std::byte> encode_log_body(const log_removal& r) {
  std::vector<std::byte> out(log_removal_bytes - log_entry_head);
  std::copy(r.id.ns.bytes.begin(), r.id.ns.bytes.end(), out.data());
  std::copy(r.id.key.bytes.begin(), r.id.key.bytes.end(), out.data() + 32);
  put(out.data() + 64, r.horizon);
  return out;
}

void encode_log_head(log_head head, std::span<const std::byte> body, std::span<std::byte> into) {
  auto* at = into.data();
  std::copy_n(reinterpret_cast<const std::byte*>(magic.data()), magic.size(), at);
  put(at + 4, version);
  put(at + 6, static_cast<std::uint16_t>(head.kind));
  put(at + 8, head.serial);
  put(at + 16, head.at);
  put(at + 24, head.sequence);
  put(at + 32, head.value);
  put(at + 40, static_cast<std::uint32_t>(log_entry_head + body.size()));
  put(at + 44, head.detail);
  put(at + 48, body.empty() ? std::uint64_t{0} : digest_of(body));
  put(at + 56, digest_of(std::span<const std::byte>(into).first(56)));
}

result<log_head> decode_log_head(std::span<const std::byte> bytes) {
  if (bytes.size() < log_entry_head) return errc::digest_mismatch;  // cut short
  const auto* at = bytes.data();
  const bool ours = std::equal(magic.begin(), magic.end(), reinterpret_cast<const char*>(at));
  if (get<std::uint64_t>(at + 56) != digest_of(bytes.first(56))) {
    if (ours) return errc::digest_mismatch;
    return errc::protocol;
  }
  if (!ours) return errc::protocol;
  const auto written = get<std::uint16_t>(at + 4);
  if (written != version && written != without_tenants) return errc::unsupported;
  log_head h;
  h.kind = static_cast<log_kind>(get<std::uint16_t>(at + 6));
  h.serial = get<std::uint64_t>(at + 8);
  h.at = get<std::uint64_t>(at + 16);
  h.sequence = get<std::uint64_t>(at + 24);
  h.value = get<std::uint64_t>(at + 32);
  h.bytes = get<std::uint32_t>(at + 40);
  h.detail = get<std::uint32_t>(at + 44);
  if (h.kind < log_kind::file || h.kind > log_kind::seal) return errc::protocol;
  if (h.bytes < log_entry_head || h.bytes > log_entry_most || h.bytes % log_entry_head != 0) return errc::protocol;
  const bool bare = h.kind != log_kind::record && h.kind != log_kind::removal;
  if (bare && h.bytes != log_entry_head) return errc::protocol;
  if (h.kind == log_kind::removal && h.bytes != log_removal_bytes) return errc::protocol;
  return h;
}

error_code check_log_body(std::span<const std::byte> head, std::span<const std::byte> body) {
  if (get<std::uint64_t>(head.data() + 48) != (body.empty() ? 0 : digest_of(body))) return errc::digest_mismatch;
  return {};
}

result<log_record> decode_log_record(std::span<const std::byte> body) {
  if (body.size() < record_fixed) return errc::protocol;
  const auto* at = body.data();
  log_record r;
  std::copy_n(at, 32, r.ns.bytes.begin());
  r.extent.at = get<std::uint64_t>(at + 32);
  const auto layers = get<std::uint32_t>(at + 40);
  r.extent.places = get<std::uint32_t>(at + 44);
  const auto blocks = get<std::uint32_t>(at + 48);
  r.extent.alignment = get<std::uint32_t>(at + 52);
  const auto algorithm = get<std::uint32_t>(at + 56), tenant = get<std::uint32_t>(at + 60);
  if (layers == 0 || layers > geometry::max_layers || r.extent.places == 0 || r.extent.places > max_request_blocks ||
      blocks == 0 || blocks > r.extent.places || algorithm > 1 || tenant > log_tenant_most)
    return errc::protocol;
  if (r.extent.alignment != 1 && r.extent.alignment != log_page) return errc::protocol;
  // Nothing is allocated before the length is known to be this.
  if (body.size() + log_entry_head != log_record_bytes(layers, blocks, tenant)) return errc::protocol;
  r.digest = static_cast<digest_algorithm>(algorithm);
  at += record_fixed;
  block_layout layout;
  layout.segments.reserve(layers);
  for (std::uint32_t l = 0; l < layers; ++l, at += 8) {
    const auto s = get<std::uint64_t>(at);
    if (s == 0 || s > geometry::max_segment_bytes) return errc::protocol;
    layout.segments.push_back(s);
  }
  r.extent.layout = std::make_shared<const block_layout>(std::move(layout));
  // 2^12 layers x 2^30 bytes x 2^16 blocks fit in 64 bits.
  if (r.extent.at % log_page != 0 || r.extent.at > std::uint64_t{1} << 62) return errc::protocol;
  r.blocks.resize(blocks);
  for (auto& b : r.blocks) {
    b.place = get<std::uint32_t>(at);
    std::copy_n(at + 4, 32, b.key.bytes.begin());
    if (b.place >= r.extent.places || (&b != r.blocks.data() && b.place <= (&b - 1)->place)) return errc::protocol;
    at += member_bytes;
  }
  r.digests.resize(std::size_t{blocks} * layers);
  for (auto& d : r.digests) d = get<std::uint64_t>(at), at += 8;
  r.tenant.assign(reinterpret_cast<const char*>(at), tenant);
  return r;
}

result<log_removal> decode_log_removal(std::span<const std::byte> body) {
  if (body.size() + log_entry_head != log_removal_bytes) return errc::protocol;
  log_removal r;
  std::copy_n(body.data(), 32, r.id.ns.bytes.begin());
  std::copy_n(body.data() + 32, 32, r.id.key.bytes.begin());
  r.horizon = get<std::uint64_t>(body.data() + 64);
  return r;
}

std::string log_file_name(std::uint64_t serial) {
  constexpr char digits[] = "0123456789abcdef";
  std::string name(16, '0');
  for (std::size_t i = 16; i-- > 0; serial >>= 4) name[i] = digits[serial & 15];
  return name.append(suffix);
}

std::optional<std::uint64_t> parse_log_file_name(std::string_view name) {
  if (name.size() != 16 + suffix.size() || !name.ends_with(suffix)) return std::nullopt;
  std::uint64_t serial = 0;
  for (char c : name.substr(0, 16)) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && (c < 'a' || c > 'f')) return std::nullopt;
    serial = serial << 4 | static_cast<std::uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return serial;
}

}  // namespace cokv::detail
