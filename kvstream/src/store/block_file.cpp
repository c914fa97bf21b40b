#include "store/block_file.hpp"

#include <algorithm>
#include <charconv>

#include "detail/bytes.hpp"

namespace cokv::detail {
namespace {

constexpr std::string_view magic = "cokv.blk";
constexpr std::uint32_t version = 2;
constexpr std::string_view suffix = ".kv";

std::uint64_t data_offset_of(std::uint64_t layers) {
  return (block_file_head + 16 * layers + block_file_page - 1) / block_file_page * block_file_page;
}

// Where the first `layers` segments end.
std::uint64_t end_of(const block_layout& layout, std::size_t layers, std::uint64_t alignment) {
  auto at = data_offset_of(layout.segments.size());
  for (std::size_t i = 0; i < layers; ++i) at += (layout.segments[i] + alignment - 1) & ~(alignment - 1);
  return at;
}

}  // namespace

std::uint64_t block_file::data_offset() const noexcept { return data_offset_of(layout.segments.size()); }

std::uint64_t block_file::segment_offset(std::uint32_t layer) const noexcept {
  return end_of(layout, layer, alignment);
}

std::uint64_t block_file::file_bytes() const noexcept { return block_file_bytes(layout, alignment); }

std::uint64_t block_file_bytes(const block_layout& layout, std::uint32_t alignment) noexcept {
  return end_of(layout, layout.segments.size(), alignment);
}

std::vector<std::byte> encode_block_file(const block_file& b) {
  std::vector<std::byte> out(b.data_offset());
  auto* at = out.data();
  std::copy_n(reinterpret_cast<const std::byte*>(magic.data()), magic.size(), at);
  put(at + 8, version);
  put(at + 12, static_cast<std::uint32_t>(b.digest));
  std::copy(b.id.ns.bytes.begin(), b.id.ns.bytes.end(), at + 16);
  std::copy(b.id.key.bytes.begin(), b.id.key.bytes.end(), at + 48);
  put(at + 80, b.layout.layers());
  put(at + 84, static_cast<std::uint32_t>(out.size()));
  put(at + 88, b.layout.bytes());
  put(at + 104, b.alignment);
  for (std::size_t i = 0; i < b.digests.size(); ++i) {
    put(at + block_file_head + 16 * i, b.layout.segments[i]);
    put(at + block_file_head + 16 * i + 8, b.digests[i]);
  }
  put(at + 96, digest_of(std::span<const std::byte>(out).subspan(block_file_head)));
  put(at + 120, digest_of(std::span<const std::byte>(out).first(120)));
  return out;
}

result<std::uint64_t> block_file_data_offset(std::span<const std::byte> head) {
  if (head.size() < block_file_head) return errc::digest_mismatch;  // cut short
  auto* at = head.data();
  bool ours = std::equal(magic.begin(), magic.end(), reinterpret_cast<const char*>(at));
  if (get<std::uint64_t>(at + 120) != digest_of(head.first(120))) {
    if (ours) return errc::digest_mismatch;
    return errc::protocol;
  }
  if (!ours) return errc::protocol;
  if (get<std::uint32_t>(at + 8) != version || get<std::uint32_t>(at + 12) > 1) return errc::unsupported;
  const auto alignment = get<std::uint32_t>(at + 104);
  if (alignment != 1 && alignment != block_file_page) return errc::protocol;
  auto layers = get<std::uint32_t>(at + 80);
  auto offset = get<std::uint32_t>(at + 84);
  if (layers == 0 || layers > geometry::max_layers || offset != data_offset_of(layers)) return errc::protocol;
  return std::uint64_t{offset};
}

result<block_file> decode_block_file(std::span<const std::byte> bytes) {
  auto offset = block_file_data_offset(bytes);
  if (!offset) return offset.error();
  if (bytes.size() != *offset) return errc::digest_mismatch;  // cut short
  auto* at = bytes.data();
  if (get<std::uint64_t>(at + 96) != digest_of(bytes.subspan(block_file_head))) return errc::digest_mismatch;
  block_file b;
  std::copy_n(at + 16, 32, b.id.ns.bytes.begin());
  std::copy_n(at + 48, 32, b.id.key.bytes.begin());
  b.digest = static_cast<digest_algorithm>(get<std::uint32_t>(at + 12));
  b.alignment = get<std::uint32_t>(at + 104);
  auto layers = get<std::uint32_t>(at + 80);
  for (std::uint32_t i = 0; i < layers; ++i) {
    b.layout.segments.push_back(get<std::uint64_t>(at + block_file_head + 16 * i));
    b.digests.push_back(get<std::uint64_t>(at + block_file_head + 16 * i + 8));
    if (b.layout.segments.back() == 0 || b.layout.segments.back() > geometry::max_segment_bytes) return errc::protocol;
  }
  if (b.layout.bytes() != get<std::uint64_t>(at + 88)) return errc::protocol;
  return b;
}

std::string block_file_name(const block_key& key, std::uint64_t serial) {
  return key.hex() + "-" + std::to_string(serial) + std::string(suffix);
}

std::optional<block_file_label> parse_block_file_name(std::string_view name) {
  if (!name.ends_with(suffix) || name.size() < 64 + 2 + suffix.size() || name[64] != '-') return std::nullopt;
  auto key = block_key::parse(name.substr(0, 64));
  auto digits = name.substr(65, name.size() - 65 - suffix.size());
  std::uint64_t serial = 0;
  auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), serial);
  if (!key || ec != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  if (block_file_name(*key, serial) != name) return std::nullopt;  // no two names of one file
  return block_file_label{*key, serial};
}

}  // namespace cokv::detail
