// The 32-byte names that KV goes by, and SHA-256, which makes them. block_key and namespace_id derive from id256, so
// that one is never taken for the other.
//
//     cokv::sha256 h; h.update("abc"); cokv::id256 id = h.finish();
//     std::string text = id.hex();                                     // 64 lower-case digits
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace cokv {

struct id256 {
  std::array<std::byte, 32> bytes{};

  std::string hex() const;
  // Compilers compare an array of std::byte byte by byte.
  friend bool operator==(const id256& a, const id256& b) noexcept {
    return std::memcmp(a.bytes.data(), b.bytes.data(), sizeof a.bytes) == 0;
  }
  friend std::strong_ordering operator<=>(const id256& a, const id256& b) noexcept {
    return std::memcmp(a.bytes.data(), b.bytes.data(), sizeof a.bytes) <=> 0;
  }
};

// 64 hex digits of either case, nothing else.
std::optional<id256> parse_id256(std::string_view hex) noexcept;

// Hash functor for tables that are looked up and never iterated in an order that matters. Takes all 32 bytes in: keys
// may come from a caller and share any prefix.
struct id256_hash {
  std::size_t operator()(const id256& id) const noexcept;
};

class sha256 {
 public:
  sha256();
  sha256(sha256&&) noexcept;
  sha256& operator=(sha256&&) noexcept;
  ~sha256();

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  void update_u32(std::uint32_t value);  // four bytes, little-endian
  // The digest; the object starts afresh.
  id256 finish();

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace cokv
