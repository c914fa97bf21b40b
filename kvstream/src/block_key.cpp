#include "cokv/kvstream/block_key.hpp"

#include <algorithm>
#include <bit>

#include "cokv/runtime/error.hpp"

namespace cokv {
namespace {

constexpr std::size_t stretch_bytes = 4;

bool ends_stretch(const block_key& parent) {
  return (std::to_integer<unsigned>(parent.bytes.back()) & ((1u << stretch_bits) - 1)) == 0;
}

}  // namespace

std::optional<block_key> block_key::parse(std::string_view hex) noexcept {
  if (auto id = parse_id256(hex)) return block_key{*id};
  return std::nullopt;
}

std::uint32_t block_key::stretch() const noexcept {
  std::uint32_t out = 0;
  for (std::size_t i = stretch_bytes; i-- != 0;) out = out << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  return out;
}

block_key root_key(std::string_view salt) {
  sha256 hash;
  hash.update("cokv.root.2");
  hash.update_u32(static_cast<std::uint32_t>(salt.size()));
  hash.update(salt);
  block_key root{hash.finish()};
  root.bytes.back() = {};
  return root;
}

namespace {

block_key chain(sha256& hash, const block_key& parent, std::span<const std::int32_t> tokens) {
  hash.update("cokv.block.2");
  hash.update(parent.bytes);
  hash.update_u32(static_cast<std::uint32_t>(tokens.size()));
  if constexpr (std::endian::native == std::endian::little)
    hash.update(std::as_bytes(tokens));
  else
    for (auto t : tokens) hash.update_u32(static_cast<std::uint32_t>(t));
  block_key key{hash.finish()};
  if (!ends_stretch(parent)) std::copy_n(parent.bytes.begin(), stretch_bytes, key.bytes.begin());
  return key;
}

}  // namespace

block_key chain(const block_key& parent, std::span<const std::int32_t> tokens) {
  sha256 hash;
  return chain(hash, parent, tokens);
}

std::vector<block_key> chain_keys(std::span<const std::int32_t> tokens, std::uint32_t block_tokens,
                                  std::string_view salt) {
  key_chain keys(block_tokens, salt);
  keys.append(tokens);
  return keys.keys();
}

key_chain::key_chain(std::uint32_t block_tokens, std::string_view salt)
    : block_tokens_(block_tokens), last_(root_key(salt)) {
  if (block_tokens == 0) throw config_error("block key: block_tokens is 0");
}

void key_chain::append(std::span<const std::int32_t> tokens) {
  if (rest_.size() + tokens.size() < block_tokens_) {
    rest_.insert(rest_.end(), tokens.begin(), tokens.end());
    return;
  }
  sha256 hash;
  auto add = [&](std::span<const std::int32_t> block) { keys_.push_back(last_ = chain(hash, last_, block)); };
  if (!rest_.empty()) {
    auto take = std::min<std::size_t>(block_tokens_ - rest_.size(), tokens.size());
    rest_.insert(rest_.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(take));
    tokens = tokens.subspan(take);
    add(rest_);
    rest_.clear();
  }
  for (; tokens.size() >= block_tokens_; tokens = tokens.subspan(block_tokens_)) add(tokens.first(block_tokens_));
  rest_.assign(tokens.begin(), tokens.end());
}

}  // namespace cokv
