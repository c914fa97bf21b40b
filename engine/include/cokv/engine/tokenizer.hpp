// Text to token ids and back, as a checkpoint's tokenizer.json says: byte-level BPE with ByteLevel, Split and Digits
// pre-tokenizers, added and special tokens. Any byte string survives encode and decode_bytes unchanged, unless the file
// asks for NFC: then its normal form does.
//
//     cokv::tokenizer tokenizer = cokv::tokenizer::load("models/tiny-kjv");
//     std::vector<cokv::token_id> ids = tokenizer.encode("And it came to pass");
//     std::string text = tokenizer.decode(ids);
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cokv/engine/token.hpp"

namespace cokv {

namespace detail {
struct tokenizer_tables;
}

struct encode_options {
  bool parse_special = true;  // text that spells a special token becomes it; off for text that must not steer
  bool add_special = true;    // what the tokenizer's post-processor puts around a text (a BOS); nothing if it has none
};

// The tables are shared by copies and never change. encode() keeps a bounded cache of words in the object, so one
// object belongs to one thread: copy it for another.
//
// Bytes that are not UTF-8 become pieces of their own, encoded byte by byte, and the text around them is split as if it
// ended there. Time is linear in the text, n log n in the longest single piece.
class tokenizer {
 public:
  // tokenizer.json, or vocab.json and merges.txt. Throws config_error naming the file and the field. Normalizers other than NFC, SentencePiece models and byte fallback are refused
  // by name.
  static tokenizer load(const std::filesystem::path& dir);
  static tokenizer parse(std::string_view json, const std::string& name);

  tokenizer(const tokenizer&);
  tokenizer(tokenizer&&) noexcept;
  tokenizer& operator=(const tokenizer&);
  tokenizer& operator=(tokenizer&&) noexcept;
  ~tokenizer();

  std::vector<token_id> encode(std::string_view text, encode_options options = {}) const;

  // The bytes of the tokens, one after the other, UTF-8 or not. Ids without a token add nothing.
  std::string decode_bytes(std::span<const token_id> ids, bool skip_special = false) const;
  // The same made valid UTF-8: each maximal broken part becomes U+FFFD.
  std::string decode(std::span<const token_id> ids, bool skip_special = false) const;

  std::string_view token_bytes(token_id id) const noexcept;  // empty for ids without a token
  bool is_special(token_id id) const noexcept;
  std::optional<token_id> find_added(std::string_view content) const;  // "<|endoftext|>" -> 0
  std::size_t size() const noexcept;                                   // highest id + 1

 private:
  struct cache;
  explicit tokenizer(std::shared_ptr<const detail::tokenizer_tables>);
  std::shared_ptr<const detail::tokenizer_tables> tables_;
  std::unique_ptr<cache> cache_;
};

}  // namespace cokv
