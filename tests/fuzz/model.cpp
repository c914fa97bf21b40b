// A model folder's files: what is refused is told in one line that begins with the file's name; what is taken keeps what
// its types promise.
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "cokv/engine/chat_template.hpp"
#include "cokv/engine/model.hpp"
#include "cokv/engine/tokenizer.hpp"
#include "cokv/runtime/error.hpp"
#include "fuzz/harness.hpp"
#include "safetensors.hpp"
#include "tokenizer/nfc.hpp"
#include "tokenizer/split_pattern.hpp"
#include "tokenizer/utf8.hpp"

namespace cokv::fuzz {
namespace {

std::string_view text_of(bytes in) { return {reinterpret_cast<const char*>(in.data()), in.size()}; }

void one_line(const config_error& e, std::string_view file) {
  const std::string_view said = e.what();
  require(said.starts_with(file) && said.substr(file.size()).starts_with(": "), "a refusal begins with the file");
  require(said.size() < 2000, "a refusal is a line");
  require(std::ranges::none_of(said, [](unsigned char c) { return c < 0x20 || c == 0x7f; }),
          "a refusal can be printed");
}

// What stands before the first 0, and what behind it.
std::pair<std::string_view, std::string_view> cut(std::string_view all) {
  const auto at = std::min(all.find('\0'), all.size());
  return {all.substr(0, at), all.substr(std::min(at + 1, all.size()))};
}

// A vocabulary of single bytes as tokenizer.json spells them (GPT-2's: bytes that can be printed stand for themselves, the
// others for what comes from U+0100 on).
std::string byte_vocabulary() {
  std::string out;
  for (int b = 0, others = 0, id = 0; b < 256; ++b) {
    const bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    const int c = itself ? b : 0x100 + others++;
    out += out.empty() ? "\"" : ",\"";
    if (c == '"' || c == '\\') out += '\\';
    if (c < 0x80) {
      out += static_cast<char>(c);
    } else {
      out += static_cast<char>(0xc0 | c >> 6);
      out += static_cast<char>(0x80 | (c & 0x3f));
    }
    out += "\":" + std::to_string(id++);
  }
  return out;
}

}  // namespace

void config(bytes in) {
  const auto [main, generation] = cut(text_of(in));
  model_config c;
  try {
    c = parse_model_config(main, "config.json", generation, "generation_config.json");
  } catch (const config_error& e) {
    const bool other = std::string_view(e.what()).starts_with("generation");
    one_line(e, other ? "generation_config.json" : "config.json");
    return reach(other ? "config: refused generation" : "config: refused");
  }
  require(c.layers > 0 && c.hidden > 0 && c.heads > 0 && c.kv_heads > 0 && c.head_dim > 0 && c.vocab > 0,
          "sizes are there");
  require(c.heads % c.kv_heads == 0, "heads share keys evenly");
  require(c.rotary_dims % 2 == 0 && c.rotary_dims <= c.head_dim, "rotary positions fit a head");
  require(weight_bytes(c, dtype::f32) >= weight_bytes(c, dtype::bf16) && weight_bytes(c, dtype::bf16) > 0,
          "what weights take can be told");
  require(!check(c.sampling), "a request that says nothing can be served");
  require(std::ranges::all_of(c.eos, [&](token_id t) { return t >= 0 && static_cast<std::uint32_t>(t) < c.vocab; }),
          "end tokens are tokens");
  reach(generation.empty() ? "config: taken" : "config: taken with generation");
}

void safetensors(bytes in) {
  detail::stored_map all;
  try {
    all = detail::read_safetensors(in, "model.safetensors");
  } catch (const config_error& e) {
    one_line(e, "model.safetensors");
    return reach("safetensors: refused");
  }
  std::size_t covered = 0;
  for (auto& [name, t] : all) {
    require(t.view.bytes.empty() || (t.view.bytes.data() >= in.data() &&
                                     t.view.bytes.data() + t.view.bytes.size() <= in.data() + in.size()),
            "a view lies in its file");
    covered += t.view.bytes.size();
    if (!t.other.empty()) {
      reach("safetensors: other type");
      continue;
    }
    std::uint64_t elements = 1;
    for (auto d : t.view.shape) elements *= d;
    require(elements == t.view.elements(), "a shape has as many elements as there are");
    reach("safetensors: tensor");
  }
  require(covered <= in.size(), "no byte belongs to two");
}

void index(bytes in) {
  try {
    for (auto& [tensor, file] : detail::read_safetensors_index(text_of(in), "index.json")) {
      require(!file.empty() && file.find('/') == file.npos && file != ".." && file.find('\0') == file.npos,
              "a shard is a file beside the index");
      reach("index: tensor");
    }
  } catch (const config_error& e) {
    one_line(e, "index.json");
    reach("index: refused");
  }
}

void tokens(bytes in) {
  static const std::string vocabulary = byte_vocabulary();
  const auto [main, words] = cut(text_of(in));
  std::string json(main);
  if (const auto at = json.find('@'); at != json.npos) json.replace(at, 1, vocabulary);
  std::optional<tokenizer> t;
  try {
    t.emplace(tokenizer::parse(json, "tokenizer.json"));
  } catch (const config_error& e) {
    one_line(e, "tokenizer.json");
    return reach("tokens: refused");
  }
  reach("tokens: taken");
  try {
    const auto ids = t->encode(words, {.add_special = false});
    for (auto id : ids)
      require(id >= 0 && static_cast<std::size_t>(id) < t->size(), "a token is one of the vocabulary");
    const auto again = t->decode_bytes(ids);
    require(again == words || again == detail::nfc(words), "what is encoded is decoded");
    t->encode(words, {.parse_special = false});
    if (!words.empty()) reach("tokens: encoded");
  } catch (const broken&) {
    throw;
  } catch (const std::runtime_error&) {  // a pattern that gives up
    reach("tokens: gave up");
  }
}

void pattern(bytes in) {
  const auto [main, all] = cut(text_of(in));
  const auto words = all.substr(0, detail::utf8_valid_prefix(all));
  std::optional<detail::split_pattern> p;
  try {
    p.emplace(main, "pattern");
  } catch (const config_error& e) {
    one_line(e, "pattern");
    return reach("pattern: refused");
  }
  try {
    detail::split_pattern::scratch scratch(*p);
    std::size_t begin = 0, end = 0;
    for (std::size_t at = 0; at < words.size();) {
      const auto piece = p->next(words, at, begin, end, scratch);
      require(piece.data() == words.data() + at && !piece.empty() && at + piece.size() <= words.size(),
              "pieces follow each other without gaps");
      at += piece.size();
      reach("pattern: piece");
    }
  } catch (const broken&) {
    throw;
  } catch (const std::runtime_error&) {
    reach("pattern: gave up");
  }
}

void chat(bytes in) {
  const auto [main, words] = cut(text_of(in));
  std::optional<chat_template> form;
  try {
    form = chat_template::parse(main, "chat_template.jinja", {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  } catch (const config_error& e) {
    one_line(e, "chat_template.jinja");
    return reach("chat: refused");
  }
  const std::vector<chat_message> said{{"system", "Be brief."}, {"user", std::string(words)}, {"assistant", " a\n"}};
  const auto text = form->render(said, wall_time(std::chrono::seconds(1'700'000'000)), [](wall_time) {
    std::tm t{};
    t.tm_year = 123, t.tm_mday = 14, t.tm_mon = 10;
    return t;
  });
  if (!text) return reach(text.error().raised ? "chat: raised" : "chat: failed");
  require(detail::utf8_valid_prefix(*text) == text->size(), "a chat is UTF-8");
  reach("chat: rendered");
}

}  // namespace cokv::fuzz
