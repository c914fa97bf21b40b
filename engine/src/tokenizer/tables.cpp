#include "tables.hpp"

#include <algorithm>

#include "cokv/runtime/detail/json_file.hpp"
#include "nfc.hpp"
#include "utf8.hpp"

namespace cokv::detail {

void added_finder::insert(std::string_view content, token_id id, bool special) {
  std::uint32_t at = 0;
  for (unsigned char c : content) {
    auto [child, fresh] = nodes_[at].children.try_emplace(c, static_cast<std::uint32_t>(nodes_.size()));
    at = child->second;
    if (fresh) nodes_.emplace_back();
  }
  nodes_[at].id = id;
  nodes_[at].special = special;
  begins_[static_cast<unsigned char>(content.front())] = true;
}

added_finder::found added_finder::find(std::string_view text, std::size_t from, bool with_special) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<unsigned char>(text[begin])]) continue;
    found best;
    std::uint32_t at = 0;
    for (std::size_t i = begin; i < text.size(); ++i) {
      auto child = nodes_[at].children.find(static_cast<unsigned char>(text[i]));
      if (child == nodes_[at].children.end()) break;
      at = child->second;
      if (nodes_[at].id && (with_special || !nodes_[at].special)) best = {begin, i + 1 - begin, *nodes_[at].id};
    }
    if (best.length > 0) return best;
  }
  return {};
}

namespace {

constexpr std::size_t most_tokens = 1 << 22, longest_added = 1024;

// GPT-2's split, which ByteLevel's use_regex stands for.
constexpr std::string_view byte_level_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The byte-level alphabet: printable bytes stand for themselves, the others for U+0100 onward in order.
class byte_alphabet {
 public:
  byte_alphabet() {
    std::uint32_t next = 0x100;
    for (std::uint32_t b = 0; b < 256; ++b) {
      bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      auto code = itself ? b : next++;
      bytes_[code] = static_cast<int>(b);
    }
  }

  // The bytes that a vocabulary's entry stands for; nothing when a character is outside the alphabet.
  std::optional<std::string> decode(std::string_view entry) const {
    std::string out;
    while (!entry.empty()) {
      auto length = utf8_first(entry).length;
      auto lead = static_cast<unsigned char>(entry[0]);
      std::uint32_t code = lead;
      if (length == 2) code = (lead & 0x1fu) << 6 | (static_cast<unsigned char>(entry[1]) & 0x3fu);
      if (length > 2 || code >= bytes_.size() || bytes_[code] < 0) return std::nullopt;
      out.push_back(static_cast<char>(bytes_[code]));
      entry.remove_prefix(length);
    }
    return out;
  }

 private:
  std::array<int, 0x144> bytes_ = [] {
    std::array<int, 0x144> none;
    none.fill(-1);
    return none;
  }();
};

std::string_view view(const json::string& s) { return {s.data(), s.size()}; }

[[noreturn]] void refuse(const fields& f, std::string_view key, std::string_view what) {
  f.fail(key, printable(what) + " is not supported");
}

void require_empty(const fields& f, std::string_view key) {
  if (f.has(key) && !f.string(key).empty()) refuse(f, key, f.string(key));
}

class reader {
 public:
  reader(const json::value& v, const std::string& name) : top_(v, name + ": ") {}

  std::shared_ptr<tokenizer_tables> read();

 private:
  // Calls f for each part of a Sequence, or for the thing itself.
  template <class F>
  void each(const fields& f, std::string_view list, F visit) {
    if (f.string("type") != "Sequence") return visit(f);
    std::size_t i = 0;
    for (auto& part : f.array(list)) visit(fields(part, f.place(std::string(list) + "[" + std::to_string(i++) + "].")));
  }
  void read_vocabulary(const fields& model);
  void read_added();
  void read_merges(const fields& model);
  void read_stages();
  void read_template();
  void read_template_part(const fields& post, const fields& item, std::vector<token_id>& out);
  void fill();

  struct token {
    std::string bytes;
    bool known = false, special = false;
  };
  fields top_;
  byte_alphabet alphabet_;
  text_map<token_id> entries_;  // as the file spells them
  std::vector<token> tokens_;
  std::shared_ptr<tokenizer_tables> out_ = std::make_shared<tokenizer_tables>();
};

void reader::read_vocabulary(const fields& model) {
  auto vocab = model.object("vocab");
  auto& raw = vocab.raw();
  if (raw.empty() || raw.size() > most_tokens)
    model.fail("vocab", std::to_string(raw.size()) + " entries are not 1 to " + std::to_string(most_tokens));
  // Holes are allowed, but not so many that a wrong id makes a huge table.
  auto highest = raw.size() * 2 + 1024;
  bool whole_words = model.boolean_or("ignore_merges", false);
  out_->byte_tokens.fill(-1);
  for (auto& [key, value] : raw) {
    std::string entry(key.data(), key.size());
    auto id = static_cast<token_id>(to_uint(value, vocab.place(entry), 0, highest));
    if (static_cast<std::size_t>(id) >= tokens_.size()) tokens_.resize(static_cast<std::size_t>(id) + 1);
    auto& t = tokens_[static_cast<std::size_t>(id)];
    if (t.known) vocab.fail(entry, "id " + std::to_string(id) + " is taken by another entry");
    t.known = true;
    if (auto bytes = alphabet_.decode(entry)) {
      t.bytes = std::move(*bytes);
      if (t.bytes.size() == 1) out_->byte_tokens[static_cast<unsigned char>(t.bytes[0])] = id;
      if (whole_words) out_->whole_words.emplace(t.bytes, id);
    } else {
      t.bytes = entry;
    }
    entries_.emplace(std::move(entry), id);
  }
  for (std::size_t b = 0; b < 256; ++b)
    if (out_->byte_tokens[b] < 0) model.fail("vocab", "no entry for byte " + std::to_string(b));
}

void reader::read_merges(const fields& model) {
  auto& list = model.array("merges");
  if (list.size() > most_tokens) model.fail("merges", "more than " + std::to_string(most_tokens));
  out_->merges = merge_table(list.size());
  std::uint32_t rank = 0;
  for (auto& item : list) {
    auto place = [&] { return "merges[" + std::to_string(rank) + "]"; };
    std::string_view left, right;
    if (auto* text = item.if_string()) {
      auto all = view(*text);
      auto space = all.find(' ');
      if (space == all.npos || all.find(' ', space + 1) != all.npos)
        model.fail(place(), "expected two tokens with one space between, found " + printable(all));
      left = all.substr(0, space);
      right = all.substr(space + 1);
    } else if (auto* pair = item.if_array();
               pair && pair->size() == 2 && (*pair)[0].is_string() && (*pair)[1].is_string()) {
      left = view((*pair)[0].get_string());
      right = view((*pair)[1].get_string());
    } else {
      model.fail(place(), "expected two tokens, found " + kind_name(item));
    }
    auto id = [&](std::string_view entry) {
      auto found = entries_.find(entry);
      if (found == entries_.end()) model.fail(place(), printable(entry) + " is not in the vocabulary");
      return found->second;
    };
    auto l = id(left), r = id(right);
    out_->merges.insert(l, r, rank, id(std::string(left) + std::string(right)));
    ++rank;
  }
}

void reader::read_added() {
  if (!top_.has("added_tokens")) return;
  auto highest = tokens_.size() * 2 + 1024;
  std::size_t i = 0;
  for (auto& item : top_.array("added_tokens")) {
    fields f(item, top_.place("added_tokens[" + std::to_string(i++) + "]."));
    auto content = f.string("content");
    if (content.empty() || content.size() > longest_added)
      f.fail("content", std::to_string(content.size()) + " bytes are not 1 to " + std::to_string(longest_added));
    for (auto* key : {"single_word", "lstrip", "rstrip"})
      if (f.boolean_or(key, false)) refuse(f, key, "true");
    auto index = static_cast<std::size_t>(f.uint("id", 0, highest));
    auto id = static_cast<token_id>(index);
    auto entry = entries_.find(content);
    if (entry != entries_.end() && entry->second != id)
      f.fail("id", std::to_string(id) + ", but the vocabulary has it as " + std::to_string(entry->second));
    if (index >= tokens_.size()) tokens_.resize(index + 1);
    auto& t = tokens_[index];
    if (t.known && entry == entries_.end()) f.fail("id", std::to_string(id) + " is taken by another token");
    t.known = true;
    t.bytes = content;
    t.special = f.boolean_or("special", false);
    if (!out_->added_ids.emplace(content, id).second) f.fail("content", printable(content) + " is given twice");
    out_->whole_words.erase(std::string(content));
    if (f.boolean_or("normalized", !t.special))
      out_->normalized.insert(out_->nfc ? nfc(content) : std::string(content), id, t.special);
    else
      out_->added.insert(content, id, t.special);
    entries_.emplace(content, id);
  }
}

void reader::read_stages() {
  bool byte_level = false;
  each(top_.object("pre_tokenizer"), "pretokenizers", [&](const fields& f) {
    auto type = f.string("type");
    if (byte_level) refuse(f, "type", std::string(type) + " after ByteLevel");
    if (type == "ByteLevel") {
      byte_level = true;
      if (f.boolean_or("add_prefix_space", true)) refuse(f, "add_prefix_space", "true");
      if (f.boolean_or("use_regex", true)) out_->stages.emplace_back(byte_level_pattern, f.place("use_regex"));
    } else if (type == "Digits") {
      out_->stages.emplace_back(f.boolean_or("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)", f.place("type"));
    } else if (type == "Split") {
      if (f.string("behavior") != "Isolated") refuse(f, "behavior", f.string("behavior"));
      if (f.boolean_or("invert", false)) refuse(f, "invert", "true");
      auto pattern = f.object("pattern");
      if (!pattern.has("Regex")) f.fail("pattern", "only Regex is supported");
      out_->stages.emplace_back(pattern.string("Regex"), pattern.place("Regex"));
    } else {
      refuse(f, "type", type);
    }
  });
  if (!byte_level) top_.fail("pre_tokenizer", "no ByteLevel in it; only byte-level vocabularies are supported");
  if (out_->stages.size() > 8) top_.fail("pre_tokenizer", "more than 8 steps");
}

void reader::read_template_part(const fields& post, const fields& item, std::vector<token_id>& out) {
  auto special = item.object("SpecialToken");
  auto name = special.string("id");
  auto entry = post.object("special_tokens").object(name);
  std::size_t i = 0;
  for (auto& id : entry.array("ids"))
    out.push_back(
        static_cast<token_id>(to_uint(id, entry.place("ids[" + std::to_string(i++) + "]"), 0, tokens_.size() - 1)));
  if (out.size() > 64) post.fail("single", "more than 64 tokens");
}

void reader::read_template() {
  if (!top_.has("post_processor")) return;
  each(top_.object("post_processor"), "processors", [&](const fields& f) {
    auto type = f.string("type");
    if (type == "ByteLevel") return;  // it only moves offsets, which nothing here uses
    if (type != "TemplateProcessing") refuse(f, "type", type);
    bool text = false;
    std::size_t i = 0;
    for (auto& value : f.array("single")) {
      fields item(value, f.place("single[" + std::to_string(i++) + "]."));
      if (item.has("Sequence")) {
        if (text) f.fail("single", "the text appears twice");
        text = true;
      } else {
        read_template_part(f, item, text ? out_->after : out_->before);
      }
    }
    if (!text) f.fail("single", "the text is not in it");
  });
}

void reader::fill() {
  for (auto& t : tokens_) {
    out_->begins.push_back(static_cast<std::uint32_t>(out_->bytes.size()));
    out_->bytes += t.bytes;
    out_->special.push_back(t.special);
  }
  out_->begins.push_back(static_cast<std::uint32_t>(out_->bytes.size()));
}

std::shared_ptr<tokenizer_tables> reader::read() {
  if (top_.has("normalizer")) {
    each(top_.object("normalizer"), "normalizers", [&](const fields& f) {
      if (f.string("type") != "NFC") refuse(f, "type", f.string("type"));
      out_->nfc = true;
    });
  }
  auto model = top_.object("model");
  if (model.has("type") && model.string("type") != "BPE") refuse(model, "type", model.string("type"));
  if (model.number_or("dropout", 0) != 0) model.fail("dropout", "is not supported");
  if (model.boolean_or("byte_fallback", false)) refuse(model, "byte_fallback", "true");
  require_empty(model, "continuing_subword_prefix");
  require_empty(model, "end_of_word_suffix");
  read_stages();
  read_vocabulary(model);
  read_merges(model);
  read_added();
  read_template();
  if (top_.has("decoder")) {
    each(top_.object("decoder"), "decoders", [&](const fields& f) {
      if (f.string("type") != "ByteLevel") refuse(f, "type", f.string("type"));
    });
  }
  fill();
  return out_;
}

}  // namespace

std::shared_ptr<const tokenizer_tables> tokenizer_tables::parse(std::string_view text, const std::string& name) {
  return read(parse_json(text, name), name);
}

std::shared_ptr<const tokenizer_tables> tokenizer_tables::read(const json::value& value, const std::string& name) {
  return reader(value, name).read();
}

}  // namespace cokv::detail
