#include "cokv/kvstream/block_places.hpp"

#include "cokv/runtime/error.hpp"
#include "detail/bytes.hpp"

namespace cokv {
namespace {

using detail::get;
using detail::put;

constexpr std::uint32_t magic = 0x50766b63;  // "ckvP"
constexpr std::uint32_t version = 1;
constexpr std::size_t head_bytes = block_places::head_bytes, life_bytes = 8, place_bytes = 16, digest_bytes = 8;

// Whole, and as its sender made it.
error_code check(std::span<const std::byte> bytes) {
  if (bytes.size() < head_bytes + digest_bytes) return errc::protocol;
  if (get<std::uint32_t>(bytes.data()) != magic || get<std::uint32_t>(bytes.data() + 4) != version)
    return errc::protocol;
  const auto sealed = bytes.size() - digest_bytes;
  if (digest_of(bytes.first(sealed)) != get<std::uint64_t>(bytes.data() + sealed)) return errc::digest_mismatch;
  return {};
}

}  // namespace

std::uint64_t block_places::encoded_bytes(std::size_t layers, std::size_t blocks) noexcept {
  return head_bytes + blocks * (life_bytes + layers * place_bytes) + digest_bytes;
}

std::vector<std::byte> block_places::encode() const {
  std::vector<std::byte> out(encoded_bytes(layers, blocks()));
  auto* at = out.data();
  put(at, magic);
  put(at + 4, version);
  put(at + 8, memory);
  put(at + 16, generation);
  put(at + 24, layers);
  put(at + 28, static_cast<std::uint32_t>(blocks()));
  at += head_bytes;
  for (const auto life : lives) {
    put(at, life);
    at += life_bytes;
  }
  for (const auto& p : places) {
    put(at, p.offset);
    put(at + 8, p.digest);
    at += place_bytes;
  }
  put(at, digest_of(std::span<const std::byte>(out).first(out.size() - digest_bytes)));
  return out;
}

result<std::size_t> block_places::announced_bytes(std::span<const std::byte> head, std::size_t most_layers,
                                                  std::size_t most_blocks) {
  if (head.size() < head_bytes || get<std::uint32_t>(head.data()) != magic) return errc::protocol;
  const std::size_t layers = get<std::uint32_t>(head.data() + 24), blocks = get<std::uint32_t>(head.data() + 28);
  if (layers > most_layers || blocks > most_blocks) return errc::protocol;
  return encoded_bytes(layers, blocks);
}

result<std::uint64_t> block_places::memory_of(std::span<const std::byte> bytes) {
  if (auto ec = check(bytes)) return ec;
  return get<std::uint64_t>(bytes.data() + 8);
}

result<block_places> block_places::decode(std::span<const std::byte> bytes, const stream_begin& asked,
                                          std::uint64_t memory_bytes) {
  if (auto ec = check(bytes)) return ec;
  block_places out;
  const auto* at = bytes.data();
  out.memory = get<std::uint64_t>(at + 8);
  out.generation = get<std::uint64_t>(at + 16);
  out.layers = get<std::uint32_t>(at + 24);
  const std::size_t blocks = get<std::uint32_t>(at + 28);
  if (out.generation != asked.generation || out.layers != asked.layout.layers() || blocks > asked.keys.size() ||
      bytes.size() != encoded_bytes(out.layers, blocks))
    return errc::protocol;
  at += head_bytes;
  out.lives.reserve(blocks);
  for (std::size_t i = 0; i < blocks; ++i, at += life_bytes) out.lives.push_back(get<std::uint64_t>(at));
  out.places.reserve(out.layers * blocks);
  for (const auto segment : asked.layout.segments)
    for (std::size_t i = 0; i < blocks; ++i, at += place_bytes) {
      const place p{get<std::uint64_t>(at), get<std::uint64_t>(at + 8)};
      if (segment > memory_bytes || p.offset > memory_bytes - segment) return errc::protocol;
      out.places.push_back(p);
    }
  return out;
}

}  // namespace cokv
