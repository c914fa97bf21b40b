#include "cokv/engine/tokenizer.hpp"

#include <algorithm>
#include <stdexcept>

#include "cokv/engine/detokenizer.hpp"
#include "cokv/runtime/detail/json_file.hpp"
#include "nfc.hpp"
#include "tables.hpp"
#include "utf8.hpp"
#include "vocabulary_files.hpp"

namespace cokv {

using tables = detail::tokenizer_tables;

namespace {

constexpr std::uint64_t file_limit = 256 << 20;
constexpr std::size_t longest_text = std::size_t{1} << 30, longest_cached_word = 48, most_cached_words = 1 << 15;

}  // namespace

// Text repeats its words: one look-up instead of merging.
struct tokenizer::cache {
  struct place {
    std::uint32_t begin, count;
  };
  std::vector<detail::split_pattern::scratch> scratch;  // one a stage
  detail::text_map<place> words;
  std::vector<token_id> tokens;
  detail::bpe_merger merger;

  explicit cache(const tables& t) {
    for (auto& stage : t.stages) scratch.emplace_back(stage);
  }

  void word(const tables& t, std::string_view text, std::vector<token_id>& out) {
    if (text.size() > longest_cached_word) return compute(t, text, out);
    auto found = words.find(text);
    if (found == words.end()) {
      if (words.size() >= most_cached_words) {
        words.clear();
        tokens.clear();
      }
      auto begin = tokens.size();
      compute(t, text, tokens);
      place where{static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(tokens.size() - begin)};
      found = words.emplace(text, where).first;
    }
    auto first = tokens.begin() + found->second.begin;
    out.insert(out.end(), first, first + found->second.count);
  }

  void compute(const tables& t, std::string_view text, std::vector<token_id>& out) {
    if (auto whole = t.whole_words.find(text); whole != t.whole_words.end()) {
      out.push_back(whole->second);
    } else {
      merger.merge(text, t.byte_tokens, t.merges, out);
    }
  }

  void split(const tables& t, std::size_t stage, std::string_view text, std::vector<token_id>& out) {
    if (stage == t.stages.size()) return word(t, text, out);
    std::size_t begin = 0, end = 0;
    for (std::size_t at = 0; at < text.size();) {
      auto piece = t.stages[stage].next(text, at, begin, end, scratch[stage]);
      split(t, stage + 1, piece, out);
      at += piece.size();
    }
  }

  void plain(const tables& t, std::string_view text, std::vector<token_id>& out) {
    while (!text.empty()) {
      auto valid = detail::utf8_valid_prefix(text);
      if (valid > 0) split(t, 0, text.substr(0, valid), out);
      text.remove_prefix(valid);
      while (!text.empty() && detail::utf8_first(text).kind != detail::utf8_kind::valid) {
        out.push_back(t.byte_tokens[static_cast<unsigned char>(text[0])]);
        text.remove_prefix(1);
      }
    }
  }

  // Cuts added tokens out of the text, hands what lies between to `rest`.
  template <class F>
  static void cut(const detail::added_finder& added, std::string_view text, bool with_special,
                  std::vector<token_id>& out, F rest) {
    std::size_t at = 0;
    while (at < text.size()) {
      auto found = added.find(text, at, with_special);
      if (found.length == 0) break;
      if (found.begin > at) rest(text.substr(at, found.begin - at));
      out.push_back(found.id);
      at = found.begin + found.length;
    }
    if (at < text.size()) rest(text.substr(at));
  }
};

tokenizer::tokenizer(std::shared_ptr<const tables> t)
    : tables_(std::move(t)), cache_(std::make_unique<cache>(*tables_)) {}
tokenizer::tokenizer(const tokenizer& other) : tokenizer(other.tables_) {}
tokenizer::tokenizer(tokenizer&&) noexcept = default;
tokenizer& tokenizer::operator=(const tokenizer& other) { return *this = tokenizer(other); }
tokenizer& tokenizer::operator=(tokenizer&&) noexcept = default;
tokenizer::~tokenizer() = default;

tokenizer tokenizer::load(const std::filesystem::path& dir) {
  const auto file = dir / "tokenizer.json", vocabulary = dir / "vocab.json";
  if (!std::filesystem::exists(file) && std::filesystem::exists(vocabulary))
    return tokenizer(tables::read(detail::read_vocabulary_files(dir), vocabulary.string() + " and merges.txt"));
  return parse(detail::read_file(file, file_limit), file.string());
}

tokenizer tokenizer::parse(std::string_view json, const std::string& name) {
  return tokenizer(tables::parse(json, name));
}

std::vector<token_id> tokenizer::encode(std::string_view text, encode_options options) const {
  if (text.size() > longest_text) throw std::length_error("tokenizer::encode: more than 1 GiB of text");
  auto& t = *tables_;
  std::vector<token_id> out;
  out.reserve(text.size() / 3 + 8);
  if (options.add_special) out = t.before;
  cache::cut(t.added, text, options.parse_special, out, [&](std::string_view part) {
    std::string normal;
    if (t.nfc) part = normal = detail::nfc(part);
    cache::cut(t.normalized, part, options.parse_special, out,
               [&](std::string_view rest) { cache_->plain(t, rest, out); });
  });
  if (options.add_special) out.insert(out.end(), t.after.begin(), t.after.end());
  return out;
}

std::string tokenizer::decode_bytes(std::span<const token_id> ids, bool skip_special) const {
  std::string out;
  for (auto id : ids)
    if (!(skip_special && is_special(id))) out += token_bytes(id);
  return out;
}

std::string tokenizer::decode(std::span<const token_id> ids, bool skip_special) const {
  utf8_repair repair;
  std::string out;
  repair.push(decode_bytes(ids, skip_special), out);
  repair.finish(out);
  return out;
}

std::string_view tokenizer::token_bytes(token_id id) const noexcept {
  auto i = static_cast<std::size_t>(static_cast<std::uint32_t>(id));
  if (i >= size()) return {};
  auto& t = *tables_;
  return std::string_view(t.bytes).substr(t.begins[i], t.begins[i + 1] - t.begins[i]);
}

bool tokenizer::is_special(token_id id) const noexcept {
  auto i = static_cast<std::size_t>(static_cast<std::uint32_t>(id));
  return i < size() && tables_->special[i];
}

std::optional<token_id> tokenizer::find_added(std::string_view content) const {
  auto found = tables_->added_ids.find(content);
  if (found == tables_->added_ids.end()) return std::nullopt;
  return found->second;
}

std::size_t tokenizer::size() const noexcept { return tables_->special.size(); }

}  // namespace cokv
