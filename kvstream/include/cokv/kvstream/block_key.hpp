// The name of one block's KV: a SHA-256 chain over the token blocks of a prompt, so that a key stands for its whole
// prefix. A salt keeps requests apart that must not share; keys that the caller brings are as good.
//
//     cokv::key_chain keys(16, salt);
//     keys.append(prompt_tokens);                       // and again, as the sequence grows
//     co_await store.async_match(ns, keys.keys());      // one key a whole block
//
// A key's first four bytes name its stretch: a piece of a chain, blocks that follow each other, 16 on average, which
// several nodes keep together (cluster_store.hpp). Where one ends is in the chain itself, so prompts that begin alike
// have the same stretches as far as they are alike, and others soon after. The other 28 bytes are of a digest: two
// prompts with the same key are not to be expected before 2^112 keys, and finding one for a given key takes 2^224 tries.
#pragma once

#include <cstdint>
#include <vector>

#include "cokv/kvstream/id256.hpp"

namespace cokv {

struct block_key : id256 {
  // What decides which of several nodes keeps the block. Keys that a caller brings have one too, whatever it is: those
  // of the same first four bytes stay together.
  std::uint32_t stretch() const noexcept;

  static std::optional<block_key> parse(std::string_view hex) noexcept;
  friend auto operator<=>(const block_key&, const block_key&) = default;
};

// A block begins a stretch when its parent's last byte has this many low bits clear: one of 2^4.
constexpr int stretch_bits = 4;

// The parent of a sequence's first block: SHA-256 over "cokv.root.2", the salt's length in four bytes, little-endian, and
// the salt, with the last byte cleared, so that a stretch begins. Salts of different text give unrelated chains; empty
// is a salt too.
block_key root_key(std::string_view salt = {});

// The key of the block that holds `tokens`, after the one named by `parent`: SHA-256 over "cokv.block.2", the parent,
// the number of tokens and the tokens, each number four bytes, little-endian; unless it begins a stretch, the first four
// bytes are then the parent's.
block_key chain(const block_key& parent, std::span<const std::int32_t> tokens);

// The keys of all whole blocks of `tokens`; what is left over has no key.
std::vector<block_key> chain_keys(std::span<const std::int32_t> tokens, std::uint32_t block_tokens,
                                  std::string_view salt = {});

// The keys of a growing sequence: each token is hashed once. Copies are independent. Not thread-safe.
class key_chain {
 public:
  // Throws config_error when block_tokens is 0.
  explicit key_chain(std::uint32_t block_tokens, std::string_view salt = {});

  void append(std::span<const std::int32_t> tokens);
  void append(std::int32_t token) { append({&token, 1}); }
  const std::vector<block_key>& keys() const noexcept { return keys_; }
  std::size_t tokens() const noexcept { return keys_.size() * block_tokens_ + rest_.size(); }
  std::uint32_t block_tokens() const noexcept { return block_tokens_; }

 private:
  std::uint32_t block_tokens_;
  block_key last_;
  std::vector<block_key> keys_;
  std::vector<std::int32_t> rest_;
};

}  // namespace cokv
