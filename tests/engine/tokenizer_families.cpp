// Every family's normalizer, split pattern, special tokens and template against what Hugging Face's tokenizers makes of
// 2,000 strings over all scripts, emoji, controls and code (scripts/golden_tokenizers).
#include <doctest/doctest.h>

#include <boost/json.hpp>
#include <chrono>

#include "cokv/engine/detokenizer.hpp"
#include "cokv/engine/tokenizer.hpp"
#include "files.hpp"
#include "tokenizer/nfc.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

std::filesystem::path fixtures() { return source_dir() / "tests/engine/fixtures/tokenizers"; }

const std::vector<std::string>& strings() {
  static const auto all = [] {
    auto out = boost::json::value_to<std::vector<std::string>>(boost::json::parse(slurp(fixtures() / "strings.json")));
    REQUIRE(out.size() == 2000);
    return out;
  }();
  return all;
}

}  // namespace

TEST_CASE("every family's tokenizer gives the reference's ids, and its tokens give the text") {
  for (std::string family : {"llama3", "qwen2", "glm", "gpt2", "opt", "bloom"}) {
    const auto t = tokenizer::load(fixtures() / family);
    const auto want = boost::json::value_to<std::vector<std::vector<token_id>>>(
        boost::json::parse(slurp(fixtures() / family / "ids.json")));
    REQUIRE(want.size() == strings().size());
    std::size_t different = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      const auto& text = strings()[i];
      const auto ids = t.encode(text);
      if (ids != want[i] && ++different <= 3) {
        INFO(family, ", string ", i, ": ", text);
        CHECK(ids == want[i]);
      }
      const auto plain = t.encode(text, {.add_special = false});
      REQUIRE(t.decode_bytes(plain) == (family == "qwen2" ? detail::nfc(text) : text));
      detokenizer streamed(t, false);
      std::string all;
      for (auto id : plain) all += streamed.push(id);
      REQUIRE(all + streamed.finish() == t.decode(plain));
    }
    INFO(family);
    CHECK(different == 0);
  }
}

namespace {

// OPT's tokenizer.json taken apart into the files that its checkpoints have.
void write_older_files(const temp_dir& to, const std::string& settings) {
  const auto whole = boost::json::parse(slurp(fixtures() / "opt/tokenizer.json"));
  auto vocabulary = whole.at("model").at("vocab");
  for (auto& t : whole.at("added_tokens").as_array()) vocabulary.as_object()[t.at("content").as_string()] = t.at("id");
  to.write("vocab.json", boost::json::serialize(vocabulary));
  std::string merges = "#version: 0.2\n";
  for (auto& m : whole.at("model").at("merges").as_array()) {
    const auto pair = m.is_string() ? std::string(m.as_string())
                                    : std::string(m.at(0).as_string()) + ' ' + std::string(m.at(1).as_string());
    merges += pair + '\n';
  }
  to.write("merges.txt", merges);
  to.write("tokenizer_config.json", settings);
}

}  // namespace

TEST_CASE("vocab.json and merges.txt make the tokenizer that tokenizer.json makes") {
  temp_dir dir;
  write_older_files(dir, R"({"add_bos_token": true, "bos_token": {"content": "</s>"}, "eos_token": "</s>"})");
  const auto t = tokenizer::load(dir.path()), whole = tokenizer::load(fixtures() / "opt");
  for (auto& text : strings()) REQUIRE(t.encode(text) == whole.encode(text));
  CHECK(t.size() == whole.size());
  const auto end = *whole.find_added("</s>");
  CHECK(t.find_added("</s>") == end);
  CHECK(t.is_special(end));
  dir.write("tokenizer_config.json", "{}");
  CHECK(tokenizer::load(dir.path()).encode("</s>a") != whole.encode("</s>a"));
  dir.write("special_tokens_map.json", R"({"bos_token": "</s>"})");
  CHECK(tokenizer::load(dir.path()).encode("a</s>") == whole.encode("a</s>", {.add_special = false}));
  std::filesystem::remove(dir.path() / "special_tokens_map.json");
  std::filesystem::remove(dir.path() / "tokenizer_config.json");
  dir.write("added_tokens.json", R"({"<more>": )" + std::to_string(whole.size() + 3) + "}");
  CHECK(tokenizer::load(dir.path()).encode("<more>") == std::vector<token_id>{token_id(whole.size() + 3)});
}

TEST_CASE("what is wrong in vocab.json, merges.txt and the special tokens beside them is named") {
  struct {
    const char *file, *text, *named;
  } table[] = {
      {"vocab.json", "[]", "vocab.json: "},
      {"vocab.json", "{", "vocab.json: "},
      {"vocab.json", R"({"a": -1})", "model.vocab"},
      {"merges.txt", "#version: 0.2\na b\nab\n", "merges.txt: line 3: "},
      {"merges.txt", "a b c\n", "merges.txt: line 1: "},
      {"merges.txt", " b\n", "merges.txt: line 1: "},
      {"merges.txt", "nobody knows\n", "model.merges"},
      {"tokenizer_config.json", R"({"bos_token": "<absent>"})", "tokenizer_config.json: bos_token: <absent>"},
      {"tokenizer_config.json", R"({"bos_token": 7})", "tokenizer_config.json: bos_token"},
      {"tokenizer_config.json", R"({"add_bos_token": true})", "tokenizer_config.json: add_bos_token: "},
      {"tokenizer_config.json", R"({"add_bos_token": "yes"})", "tokenizer_config.json: add_bos_token"},
      {"tokenizer_config.json", R"({"add_prefix_space": true})", "tokenizer_config.json: add_prefix_space: "},
      {"tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "y"}}})", "added_tokens_decoder.x: "},
      {"tokenizer_config.json", R"({"added_tokens_decoder": {"1": {}}})", "added_tokens_decoder.1.content"},
      {"special_tokens_map.json", R"({"additional_special_tokens": ["<absent>"]})",
       "additional_special_tokens[0]: <absent>"},
      {"added_tokens.json", R"({"<more>": "7"})", "added_tokens.json: <more>"},
  };
  for (auto& row : table) {
    CAPTURE(row.file);
    CAPTURE(row.text);
    temp_dir dir;
    write_older_files(dir, "{}");
    dir.write(row.file, row.text);
    std::string said;
    try {
      tokenizer::load(dir.path());
    } catch (const config_error& e) {
      said = e.what();
    }
    CHECK(said.find(row.named) != std::string::npos);
    CHECK(said.find('\n') == std::string::npos);
    CHECK(said.find(dir.path().string()) == 0);
  }
  temp_dir dir;
  write_older_files(dir, "{}");
  std::filesystem::remove(dir.path() / "merges.txt");
  CHECK_THROWS_AS(tokenizer::load(dir.path()), config_error);
}

TEST_CASE("normal form C composes, orders marks, and leaves broken bytes and plain text alone") {
  using detail::nfc;
  CHECK(nfc("") == "");
  CHECK(nfc("plain text\n") == "plain text\n");
  CHECK(nfc("cafe\u0301") == "caf\u00e9");
  CHECK(nfc("e\u0302\u0323") == "\u1ec7");       // by way of the other order
  CHECK(nfc("\u1100\u1161\u11a8") == "\uac01");  // Hangul
  CHECK(nfc("\u212b") == "\u00c5");              // an Angstrom sign is a letter
  CHECK(nfc("\u0958") == "\u0915\u093c");        // excluded from composition
  CHECK(nfc("a\u0301\xff e\u0301\xe2\x82") == "\u00e1\xff \u00e9\xe2\x82");
  CHECK(nfc("\xff\u0301") == "\xff\u0301");  // nothing before it to go with
  for (auto& text : strings()) REQUIRE(nfc(nfc(text)) == nfc(text));
}

TEST_CASE("normalizing a run of marks takes no longer than its length") {
  std::string text = "a";
  for (int i = 0; i < 300'000; ++i) text += i % 2 ? "\u0301" : "\u0323";  // each would pass all before it
  const auto start = std::chrono::steady_clock::now();
  const auto out = detail::nfc(text);
  CHECK(out.size() > text.size() - 8);
  CHECK(out.starts_with("\u1ea1"));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
}

TEST_CASE("a class inside a class of a split pattern is a part of it, or refused") {
  const auto base = slurp(fixtures() / "bloom" / "tokenizer.json");
  auto with = [&](const std::string& pattern) {
    auto v = boost::json::parse(base);
    v.at("pre_tokenizer").at("pretokenizers").at(0).at("pattern").at("Regex") = pattern;
    return boost::json::serialize(v);
  };
  auto error = [&](const std::string& pattern) {
    return config_error_of([&] { tokenizer::parse(with(pattern), "t"); });
  };
  const auto count = [&](const std::string& pattern, std::string_view text) {
    return tokenizer::parse(with(pattern), "t").encode(text).size();
  };
  // Of bytes that no merge joins: a token each, however they are cut; of a word that one token is, cuts show.
  CHECK(error("[a[bc]d]+") == "[no error]");
  CHECK(count("[x[yz]]+", "the") == count("[^q]", "the") - 2);  // not cut at all, and cut everywhere
  CHECK(error("[a[^b]]").find("a negated or named class inside a class is not supported") != std::string::npos);
  CHECK(error("[[:alpha:]]").find("a negated or named class inside a class is not supported") != std::string::npos);
  CHECK(error("[a&&b]").find("an intersection of classes is not supported") != std::string::npos);
  CHECK(error("[a-[b]]").find("such a class inside a class is not supported") != std::string::npos);
  CHECK(error("[a[-b]]").find("such a class inside a class is not supported") != std::string::npos);
  CHECK(error("[a[b-]c]").find("such a class inside a class is not supported") != std::string::npos);
}
