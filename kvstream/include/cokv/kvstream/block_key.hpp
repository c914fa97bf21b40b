// The name of one block's KV: a SHA-256 chain over the token blocks of a prompt, so that a key stands for its whole
// prefix. A salt keeps requests apart that must not share; keys that the caller brings are as good.
//
//     cokv::key_chain keys(16, salt);
//     keys.append(prompt_tokens);                       // and again, as the sequence grows
//     co_await store.async_match(ns, keys.keys());      // one key a whole block
#pragma once

#include <cstdint>
#include <vector>

#include "cokv/kvstream/id256.hpp"

namespace cokv {

struct block_key : id256 {
  static std::optional<block_key> parse(std::string_view hex) noexcept;
  friend auto operator<=>(const block_key&, const block_key&) = default;
};

// The parent of a sequence's first block. Salts of different text give unrelated chains; empty is a salt too.
block_key root_key(std::string_view salt = {});

// The key of the block that holds `tokens`, after the one named by `parent`: SHA-256 over "cokv.block.1", the parent,
// the number of tokens and the tokens, each number four bytes, little-endian.
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
