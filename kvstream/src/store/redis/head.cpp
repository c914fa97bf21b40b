#include "store/redis/head.hpp"

#include <algorithm>
#include <cstring>

#include "cokv/kvstream/digest.hpp"
#include "detail/bytes.hpp"

namespace cokv::detail {
namespace {

constexpr std::array<std::byte, 4> magic{std::byte{0x63}, std::byte{0x6b}, std::byte{0x76}, std::byte{0x48}};
constexpr std::size_t fixed = 96, a_layer = 16, trailer = 8;

std::string hex(std::span<const std::byte> bytes) {
  constexpr char digits[] = "0123456789abcdef";
  std::string out;
  for (const auto b : bytes) {
    out += digits[std::to_integer<int>(b) >> 4];
    out += digits[std::to_integer<int>(b) & 15];
  }
  return out;
}

}  // namespace

std::string redis_head::encode() const {
  std::vector<std::byte> out(fixed);
  std::ranges::copy(magic, out.begin());
  out[4] = std::byte{1};
  out[5] = std::byte{1};  // XXH3-64
  put(out.data() + 8, nonce);
  std::ranges::copy(ns.bytes, out.begin() + 16);
  std::ranges::copy(key.bytes, out.begin() + 48);
  put(out.data() + 80, piece);
  put(out.data() + 88, std::uint64_t{layout.layers()});
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
    append(out, layout.segments[layer]);
    append(out, digests[layer]);
  }
  append(out, digest_of(out));
  return {reinterpret_cast<const char*>(out.data()), out.size()};
}

std::optional<redis_head> redis_head::decode(std::string_view text, const namespace_id& ns, const block_key& key) {
  const auto bytes = std::as_bytes(std::span(text));
  if (bytes.size() < fixed + trailer || !std::ranges::equal(bytes.first(4), magic)) return std::nullopt;
  if (get<std::uint32_t>(bytes.data() + 4) != 0x0101) return std::nullopt;
  const auto layers = get<std::uint64_t>(bytes.data() + 88);
  if (layers == 0 || layers > geometry::max_layers || bytes.size() != fixed + layers * a_layer + trailer)
    return std::nullopt;
  if (digest_of(bytes.first(bytes.size() - trailer)) != get<std::uint64_t>(bytes.data() + bytes.size() - trailer))
    return std::nullopt;
  redis_head head;
  head.nonce = get<std::uint64_t>(bytes.data() + 8);
  std::ranges::copy(bytes.subspan(16, 32), head.ns.bytes.begin());
  std::ranges::copy(bytes.subspan(48, 32), head.key.bytes.begin());
  if (head.ns != ns || head.key != key) return std::nullopt;
  head.piece = get<std::uint64_t>(bytes.data() + 80);
  if (head.piece == 0 || head.piece > max_redis_piece) return std::nullopt;
  std::uint64_t pieces = 0;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const auto* at = bytes.data() + fixed + layer * a_layer;
    head.layout.segments.push_back(get<std::uint64_t>(at));
    head.digests.push_back(get<std::uint64_t>(at + 8));
    if (head.layout.segments.back() == 0 || head.layout.segments.back() > geometry::max_segment_bytes)
      return std::nullopt;
    pieces += head.pieces_of(static_cast<std::uint32_t>(layer));
  }
  if (pieces > max_redis_pieces) return std::nullopt;
  return head;
}

// The tag is the block's stretch: what follows each other in a prompt lies on one node.
std::string head_name(const namespace_id& ns, const block_key& key) {
  return "cokv:{" + hex(std::span(key.bytes).first(4)) + "}:" + ns.hex() + ':' + key.hex();
}

std::string piece_name(const redis_head& head, std::uint32_t layer, std::uint32_t piece) {
  std::array<std::byte, 8> nonce;
  put(nonce.data(), head.nonce);
  return head_name(head.ns, head.key) + ':' + hex(nonce) + ':' + std::to_string(layer) + '.' + std::to_string(piece);
}

std::vector<std::string> piece_names(const redis_head& head) {
  std::vector<std::string> out;
  for (std::uint32_t layer = 0; layer < head.layout.layers(); ++layer)
    for (std::uint32_t i = 0; i < head.pieces_of(layer); ++i) out.push_back(piece_name(head, layer, i));
  return out;
}

}  // namespace cokv::detail
