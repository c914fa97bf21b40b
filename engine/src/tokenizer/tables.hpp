// What a tokenizer.json says, checked and in the form that encoding and decoding use.
#pragma once

#include <array>
#include <boost/json/value.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "bpe.hpp"
#include "cokv/engine/tokenizer.hpp"
#include "split_pattern.hpp"

namespace cokv::detail {

struct text_hash {
  using is_transparent = void;
  std::size_t operator()(std::string_view s) const noexcept { return std::hash<std::string_view>()(s); }
};
template <class T>
using text_map = std::unordered_map<std::string, T, text_hash, std::equal_to<>>;

// Finds added tokens in text: the leftmost, and of those that begin there the longest.
class added_finder {
 public:
  struct found {
    std::size_t begin = 0;
    std::size_t length = 0;  // 0: nothing found
    token_id id = 0;
  };

  void insert(std::string_view content, token_id id, bool special);
  found find(std::string_view text, std::size_t from, bool with_special) const;
  bool empty() const noexcept { return nodes_.size() == 1; }

 private:
  struct node {
    std::map<unsigned char, std::uint32_t> children;
    std::optional<token_id> id;
    bool special = false;
  };
  std::vector<node> nodes_{1};
  std::array<bool, 256> begins_{};
};

struct tokenizer_tables {
  bool nfc = false;  // text is normalized first
  std::vector<split_pattern> stages;
  std::array<token_id, 256> byte_tokens{};
  merge_table merges;
  text_map<token_id> whole_words;  // only when a piece that is a token skips merging
  added_finder added, normalized;  // normalized ones are looked for in what the others leave
  text_map<token_id> added_ids;
  std::vector<token_id> before, after;  // special tokens around a text
  std::string bytes;                    // of all tokens, one after the other
  std::vector<std::uint32_t> begins;    // token i is [begins[i], begins[i + 1])
  std::vector<bool> special;

  // tokenizer.json's text; throws config_error beginning with `name`.
  static std::shared_ptr<const tokenizer_tables> parse(std::string_view json, const std::string& name);
  static std::shared_ptr<const tokenizer_tables> read(const boost::json::value& tokenizer_json,
                                                      const std::string& name);
};

}  // namespace cokv::detail
