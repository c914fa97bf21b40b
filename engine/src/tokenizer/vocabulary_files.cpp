#include "vocabulary_files.hpp"

#include <charconv>
#include <map>
#include <optional>

#include "cokv/runtime/detail/json_file.hpp"

namespace cokv::detail {
namespace {

constexpr std::uint64_t file_limit = 64 << 20, highest_id = 1 << 24;

struct special_tokens {
  explicit special_tokens(const std::filesystem::path& dir) : vocabulary((dir / "vocab.json").string()) {
    ids = parse_json(read_file(dir / "vocab.json", file_limit), vocabulary);
    fields checked(ids, vocabulary + ": ");
  }

  void read(const std::filesystem::path& file) {
    if (!std::filesystem::exists(file)) return;
    const auto value = parse_json(read_file(file, file_limit), file.string());
    fields f(value, file.string() + ": ");
    if (f.has("added_tokens_decoder")) read_decoder(f.object("added_tokens_decoder"));
    for (const char* name :
         {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"})
      if (f.has(name)) {
        const auto token = special(f.at(name), f.place(name));
        if (std::string_view(name) == "bos_token" && !bos) bos = token;
      }
    if (f.has("additional_special_tokens")) {
      std::size_t i = 0;
      for (auto& v : f.array("additional_special_tokens"))
        special(v, f.place("additional_special_tokens[" + std::to_string(i++) + "]"));
    }
    if (f.boolean_or("add_prefix_space", false)) f.fail("add_prefix_space", "true is not supported");
    if (f.has("add_bos_token")) {
      add_bos = f.boolean_or("add_bos_token", false);
      if (add_bos && !bos) f.fail("add_bos_token", "true, but there is no bos_token");
    }
  }

  // added_tokens.json: {"token": id}.
  void read_added(const std::filesystem::path& file) {
    if (!std::filesystem::exists(file)) return;
    const auto value = parse_json(read_file(file, file_limit), file.string());
    fields f(value, file.string() + ": ");
    for (auto& [token, id] : f.raw()) {
      const std::string text(token);
      add(text, to_uint(id, f.place(text), 0, highest_id), false);
    }
  }

  // For tokenizer.json's added_tokens, in the order of ids.
  json::array list() const {
    std::map<std::uint64_t, json::object> sorted;
    for (auto& [content, t] : added)
      sorted[t.id] = {{"content", content}, {"id", t.id}, {"special", t.special}, {"normalized", false}};
    json::array out;
    for (auto& [id, token] : sorted) out.push_back(std::move(token));
    return out;
  }

  std::string vocabulary;
  json::value ids;
  struct one {
    std::uint64_t id;
    bool special;
  };
  std::map<std::string, one> added;
  std::optional<std::string> bos;
  bool add_bos = false;

 private:
  void add(const std::string& token, std::uint64_t id, bool special) {
    auto& t = added.try_emplace(token, one{id, special}).first->second;
    t.special |= special;
  }
  // "token" or {"content": "token"}: one that the vocabulary or another file has.
  std::string special(const json::value& v, const std::string& place) {
    if (!v.is_string() && !v.is_object()) throw config_error(place + ": expected a string, found " + kind_name(v));
    const std::string token(v.is_string() ? std::string_view(v.get_string())
                                          : fields(v, place + ".").string("content"));
    const auto* id = ids.as_object().if_contains(token);
    if (id)
      add(token, to_uint(*id, vocabulary + ": " + printable(token), 0, highest_id), true);
    else if (auto known = added.find(token); known != added.end())
      known->second.special = true;
    else
      throw config_error(place + ": " + printable(token) + " is not in vocab.json");
    return token;
  }
  void read_decoder(const fields& f) {
    for (auto& [id, token] : f.raw()) {
      const std::string text(id);
      std::uint64_t number = 0;
      const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), number);
      if (ec != std::errc() || end != text.data() + text.size() || number > highest_id) f.fail(text, "is no token id");
      fields t(token, f.place(text) + ".");
      add(std::string(t.string("content")), number, t.boolean_or("special", false));
    }
  }
};

json::array read_merges(const std::filesystem::path& file) {
  const auto text = read_file(file, file_limit);
  json::array out;
  std::size_t line = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    std::string_view pair(text.data() + at, end - at);
    if (pair.ends_with('\r')) pair.remove_suffix(1);
    at = end + 1;
    if (++line == 1 && pair.starts_with("#version")) continue;
    if (pair.empty()) continue;
    const auto space = pair.find(' ');
    if (space == 0 || space == pair.npos || space + 1 == pair.size() || pair.find(' ', space + 1) != pair.npos)
      throw config_error(file.string() + ": line " + std::to_string(line) + ": " + printable(pair) +
                         " is not two tokens with a space between");
    out.push_back(json::string(pair));
  }
  return out;
}

}  // namespace

json::value read_vocabulary_files(const std::filesystem::path& dir) {
  special_tokens tokens(dir);
  tokens.read_added(dir / "added_tokens.json");
  tokens.read(dir / "special_tokens_map.json");
  tokens.read(dir / "tokenizer_config.json");
  json::object out{
      {"added_tokens", tokens.list()},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
  };
  if (tokens.add_bos)
    out["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single", {{{"SpecialToken", {{"id", *tokens.bos}}}}, {{"Sequence", {{"id", "A"}}}}}},
        {"special_tokens", {{*tokens.bos, {{"ids", json::array{tokens.added.at(*tokens.bos).id}}}}}},
    };
  json::object model{{"type", "BPE"}, {"merges", read_merges(dir / "merges.txt")}};
  model["vocab"] = std::move(tokens.ids);
  out["model"] = std::move(model);
  return out;
}

}  // namespace cokv::detail
