#include "cokv/kvstream/id256.hpp"

#include <openssl/evp.h>

#include <cstring>
#include <new>
#include <stdexcept>

namespace cokv {
namespace {

int nibble(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

void require(int ok) {
  if (ok != 1) throw std::bad_alloc();  // with a fixed algorithm, OpenSSL fails only for want of memory
}

}  // namespace

std::string id256::hex() const {
  constexpr char digits[] = "0123456789abcdef";
  std::string out;
  out.reserve(64);
  for (auto b : bytes) {
    out.push_back(digits[std::to_integer<int>(b) >> 4]);
    out.push_back(digits[std::to_integer<int>(b) & 15]);
  }
  return out;
}

std::optional<id256> parse_id256(std::string_view hex) noexcept {
  if (hex.size() != 64) return std::nullopt;
  id256 out;
  for (std::size_t i = 0; i < 32; ++i) {
    int high = nibble(hex[2 * i]), low = nibble(hex[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    out.bytes[i] = static_cast<std::byte>(high * 16 + low);
  }
  return out;
}

std::size_t id256_hash::operator()(const id256& id) const noexcept {
  std::uint64_t words[4], mixed = 0x9e3779b97f4a7c15u;
  std::memcpy(words, id.bytes.data(), sizeof words);
  for (auto w : words) {
    mixed = (mixed ^ w) * 0xff51afd7ed558ccdu;
    mixed ^= mixed >> 32;
  }
  return mixed;
}

namespace {

// Found once: OpenSSL otherwise looks the algorithm up at every start, which costs more than hashing a block's tokens.
const EVP_MD* algorithm() {
  static const EVP_MD* const found = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  if (!found) throw std::runtime_error("OpenSSL has no SHA-256");
  return found;
}

}  // namespace

struct sha256::state {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  state() {
    if (!context) throw std::bad_alloc();
  }
  ~state() { EVP_MD_CTX_free(context); }
  state(const state&) = delete;
  state& operator=(const state&) = delete;
};

sha256::sha256() : state_(std::make_unique<state>()) {
  require(EVP_DigestInit_ex2(state_->context, algorithm(), nullptr));
}
sha256::sha256(sha256&&) noexcept = default;
sha256& sha256::operator=(sha256&&) noexcept = default;
sha256::~sha256() = default;

void sha256::update(std::span<const std::byte> bytes) {
  require(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()));
}

void sha256::update_u32(std::uint32_t value) {
  std::array<std::byte, 4> bytes{};
  for (int i = 0; i < 4; ++i) bytes[static_cast<std::size_t>(i)] = static_cast<std::byte>(value >> (8 * i));
  update(bytes);
}

id256 sha256::finish() {
  id256 out;
  require(EVP_DigestFinal_ex(state_->context, reinterpret_cast<unsigned char*>(out.bytes.data()), nullptr));
  require(EVP_DigestInit_ex2(state_->context, nullptr, nullptr));
  return out;
}

}  // namespace cokv
