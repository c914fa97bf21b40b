#include "cokv/engine/tokenizer.hpp"

#include <doctest/doctest.h>

#include <boost/json.hpp>
#include <map>
#include <random>
#include <set>

#include "cokv/engine/detokenizer.hpp"
#include "files.hpp"

using namespace cokv;
using namespace cokv::test;
namespace json = boost::json;

namespace {

std::vector<token_id> ids_of(const json::value& list) {
  std::vector<token_id> out;
  for (auto& id : list.as_array()) out.push_back(id.to_number<token_id>());
  return out;
}

std::string text_of(const json::value& v) { return {v.as_string().data(), v.as_string().size()}; }

// Ids and texts that Hugging Face's tokenizers 0.23 gives with the bundled tokenizer.json and variants of it.
const json::value& golden() {
  static const json::value v = json::parse(slurp(source_dir() / "tests/engine/fixtures/tokenizer_golden.json"));
  return v;
}

json::value bundled() { return json::parse(slurp(tiny() / "tokenizer.json")); }

tokenizer parse(const json::value& v) { return tokenizer::parse(json::serialize(v), "tokenizer.json"); }

// The bundled vocabulary with a merge for each pair of some bytes, so that the ids show where pieces were cut.
json::value with_pairs() {
  auto v = bundled();
  auto& vocab = v.at("model").at("vocab").as_object();
  auto& merges = v.at("model").at("merges").as_array();
  std::string letters = text_of(golden().at("pairs_of").at(0));
  std::vector<std::string> symbols;
  for (std::size_t i = 0; i < letters.size();) {
    std::size_t n = static_cast<unsigned char>(letters[i]) < 0x80 ? 1 : 2;
    symbols.push_back(letters.substr(i, n));
    i += n;
  }
  std::set<std::string> done;
  for (auto& m : merges) done.insert(text_of(m));
  int id = 2100;
  for (auto& a : symbols)
    for (auto& b : symbols) {
      if (!vocab.contains(a + b)) vocab[a + b] = id++;
      if (!done.contains(a + " " + b)) merges.emplace_back(a + " " + b);
    }
  return v;
}

json::value sequence(const std::string& first, bool use_regex) {
  return json::parse(R"({"type":"Sequence","pretokenizers":[)" + first +
                     R"(,{"type":"ByteLevel","add_prefix_space":false,"use_regex":)" + (use_regex ? "true" : "false") +
                     "}]}");
}

// Llama 3's split.
const std::string llama3_split =
    R"j({"type":"Split","behavior":"Isolated","invert":false,"pattern":{"Regex":"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}})j";

std::string random_bytes(std::mt19937_64& random, std::size_t n) {
  std::string out;
  while (out.size() < n) out.push_back(static_cast<char>(random() % 3 ? random() : ' ' + random() % 95));
  return out;
}

}  // namespace

TEST_CASE("the bundled model's prompts become the tokens that it was measured with") {
  auto tokens = tokenizer::load(tiny());
  auto expected = json::parse(slurp(tiny() / "expected.json"));
  for (auto& item : expected.at("cases").as_array()) {
    CHECK(tokens.encode(text_of(item.at("prompt"))) == ids_of(item.at("prompt_tokens")));
    CHECK(tokens.decode(ids_of(item.at("tokens"))) == text_of(item.at("text")));
  }
}

TEST_CASE("golden ids over scripts, emoji, code and white space, and back") {
  auto tokens = tokenizer::load(tiny());
  auto& cases = golden().at("cases").as_array();
  CHECK(cases.size() >= 500);
  for (int pass = 0; pass < 2; ++pass)  // the second from the cache of words
    for (auto& item : cases) {
      auto text = text_of(item.at("text"));
      CAPTURE(text);
      auto ids = tokens.encode(text);
      CHECK(ids == ids_of(item.at("ids")));
      CHECK(tokens.decode(ids) == text);
    }
}

TEST_CASE("golden ids with a vocabulary that shows where each pre-tokenizer cuts") {
  auto plain = with_pairs(), split = plain, digits = plain;
  split.at("pre_tokenizer") = sequence(llama3_split, false);
  split.at("model").as_object()["ignore_merges"] = true;
  for (auto& m : split.at("model").at("merges").as_array()) {  // the newer spelling of merges
    auto text = text_of(m);
    auto space = text.find(' ');
    m = json::array{text.substr(0, space), text.substr(space + 1)};
  }
  digits.at("pre_tokenizer") = sequence(R"({"type":"Digits","individual_digits":true})", true);

  auto check = [](const tokenizer& tokens, const char* key, const char* otherwise) {
    std::size_t different = 0;
    for (auto& item : golden().at("cases").as_array()) {
      auto& o = item.as_object();
      auto* own = o.if_contains(key);
      different += own != nullptr;
      if (!own) own = o.if_contains(otherwise);
      if (!own) own = o.if_contains("ids");
      auto text = text_of(item.at("text"));
      CAPTURE(text);
      CAPTURE(key);
      CHECK(tokens.encode(text) == ids_of(*own));
    }
    CHECK(different > 30);
  };
  check(parse(plain), "pairs", "ids");
  check(parse(split), "llama3", "pairs");
  check(parse(digits), "digits", "pairs");
}

TEST_CASE("added tokens are cut out first: leftmost, longest, and a post-processor's BOS goes in front") {
  auto v = bundled();
  int id = 2048;
  auto add = [&](const char* content, bool special, bool normalized) {
    v.at("added_tokens")
        .as_array()
        .push_back({{"id", id++}, {"content", content}, {"special", special}, {"normalized", normalized}});
  };
  add("<|eot|>", true, false);
  add("<|eot|>!", true, false);
  add("    ", false, false);
  add("LORD", false, true);
  add("LORD is", false, true);
  add("<think>", false, false);
  v.at("post_processor") = json::parse(
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<|endoftext|>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"special_tokens":{"<|endoftext|>":{"id":"<|endoftext|>","ids":[0],"tokens":["<|endoftext|>"]}}})");
  auto tokens = parse(v);
  for (auto& item : golden().at("added").as_array()) {
    auto text = text_of(item.at("text"));
    CAPTURE(text);
    CHECK(tokens.encode(text) == ids_of(item.at("ids")));
  }
  CHECK(tokens.find_added("<|eot|>") == 2048);
  CHECK(!tokens.find_added("LOR"));
  CHECK(tokens.is_special(2048));
  CHECK(!tokens.is_special(2053));
  CHECK(tokens.size() == 2054);
  CHECK(tokens.encode("", {.add_special = false}).empty());

  // Text from outside can't spell a special token, but a plain added token stays one.
  auto safe = tokens.encode("<think><|eot|>", {.parse_special = false, .add_special = false});
  CHECK(safe.front() == 2053);
  CHECK(std::find(safe.begin(), safe.end(), 2048) == safe.end());
  CHECK(tokens.decode(safe) == "<think><|eot|>");
  CHECK(tokens.decode(std::vector<token_id>{2048, 66, 2053}, true) == "A<think>");
}

TEST_CASE("decoding broken UTF-8 gives the golden text") {
  auto tokens = tokenizer::load(tiny());
  for (auto& item : golden().at("decode").as_array())
    CHECK(tokens.decode(ids_of(item.at("ids"))) == text_of(item.at("text")));
}

TEST_CASE("any bytes survive encoding and decoding") {
  auto tokens = tokenizer::load(tiny());
  std::mt19937_64 random(7);
  for (int round = 0; round < 500; ++round) {
    auto bytes = random_bytes(random, random() % 60);
    CHECK(tokens.decode_bytes(tokens.encode(bytes)) == bytes);
  }
  std::string text = "and \xff\xc3( God \xe2\x82";
  CHECK(tokens.decode_bytes(tokens.encode(text)) == text);
  CHECK(tokens.decode(tokens.encode(text)) == "and \xef\xbf\xbd\xef\xbf\xbd( God \xef\xbf\xbd");
}

TEST_CASE("a stream of text never ends inside a UTF-8 sequence and adds up to the whole") {
  auto tokens = tokenizer::load(tiny());
  std::mt19937_64 random(8);
  for (int round = 0; round < 500; ++round) {
    std::vector<token_id> ids;
    for (auto n = random() % 20; n > 0; --n)
      ids.push_back(static_cast<token_id>(random() % 2 ? random() % 2048 : 129 + random() % 128));
    for (bool skip : {false, true}) {
      detokenizer text(tokens, skip);
      std::string all;
      for (auto id : ids) {
        all += text.push(id);
        utf8_repair repair;
        std::string repaired;
        repair.push(all, repaired);
        repair.finish(repaired);
        CHECK(repaired == all);  // valid at every point
      }
      all += text.finish();
      CHECK(all == tokens.decode(ids, skip));
    }
  }
}

TEST_CASE("pieces of any length merge as the definition says") {
  auto v = bundled();
  std::map<std::pair<std::string, std::string>, std::size_t> ranks;
  for (auto& m : v.at("model").at("merges").as_array()) {
    auto text = text_of(m);
    auto space = text.find(' ');
    ranks.emplace(std::pair(text.substr(0, space), text.substr(space + 1)), ranks.size());
  }
  auto by_definition = [&](const std::string& word) {
    std::vector<std::string> parts;
    for (char c : word) parts.emplace_back(1, c);
    for (;;) {
      auto best = ranks.end();
      std::size_t at = 0;
      for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
        auto found = ranks.find({parts[i], parts[i + 1]});
        if (found != ranks.end() && (best == ranks.end() || found->second < best->second)) best = found, at = i;
      }
      if (best == ranks.end()) return parts;
      parts[at] += parts[at + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
  };
  auto tokens = tokenizer::load(tiny());
  std::mt19937_64 random(9);
  for (int round = 0; round < 400; ++round) {
    std::string word;
    for (auto n = 1 + random() % 120; n > 0; --n) word.push_back("aehilnorst"[random() % 10]);
    std::vector<std::string> parts;
    for (auto id : tokens.encode(word)) parts.emplace_back(tokens.token_bytes(id));
    CHECK(parts == by_definition(word));
  }
}

TEST_CASE("a megabyte without a break is encoded, not only a page") {
  auto split = bundled();
  split.at("pre_tokenizer") = sequence(llama3_split, false);
  for (auto& tokens : {tokenizer::load(tiny()), parse(split)})
    for (auto c : {'a', ' ', '\n', '7', '!', '\xff'}) {
      std::string text(1 << 20, c);
      CHECK(tokens.decode_bytes(tokens.encode(text)) == text);
      text += "x";
      CHECK(tokens.decode_bytes(tokens.encode(text)) == text);
    }
}

TEST_CASE("ids without a token decode to nothing") {
  auto tokens = tokenizer::load(tiny());
  CHECK(tokens.decode(std::vector<token_id>{-1, 2048, 1 << 30, 66}) == "A");
  CHECK(tokens.token_bytes(-5).empty());
  CHECK(!tokens.is_special(99999));
}

TEST_CASE("copies share nothing that one of them changes") {
  auto tokens = tokenizer::load(tiny());
  auto first = tokens.encode("In the beginning");
  auto copy = tokens;
  CHECK(copy.encode("In the beginning") == first);
  tokens = tokenizer::load(tiny());
  copy = tokens;
  CHECK(copy.encode("In the beginning") == first);
}

TEST_CASE("what a tokenizer.json gets wrong is named") {
  auto error = [](auto change) {
    auto v = bundled();
    change(v);
    return config_error_of([&] { parse(v); });
  };
  auto set = [&](const char* key, const char* value) {
    return error([&](json::value& v) { v.as_object()[key] = json::parse(value); });
  };
  auto model = [&](const char* key, const char* value) {
    return error([&](json::value& v) { v.at("model").as_object()[key] = json::parse(value); });
  };
  CHECK(set("model", "null") == "tokenizer.json: model: missing");
  CHECK(set("model", "[]") == "tokenizer.json: model: expected an object, found a list");
  CHECK(set("normalizer", R"({"type":"NFKC"})") == "tokenizer.json: normalizer.type: NFKC is not supported");
  CHECK(set("normalizer", R"({"type":"NFC"})") == "[no error]");
  CHECK(set("normalizer", R"({"type":"Sequence","normalizers":[]})") == "[no error]");
  CHECK(set("pre_tokenizer", "null") == "tokenizer.json: pre_tokenizer: missing");
  CHECK(set("pre_tokenizer", R"({"type":"Metaspace"})") ==
        "tokenizer.json: pre_tokenizer.type: Metaspace is not supported");
  CHECK(set("pre_tokenizer", R"({"type":"ByteLevel","add_prefix_space":true})") ==
        "tokenizer.json: pre_tokenizer.add_prefix_space: true is not supported");
  CHECK(set("pre_tokenizer", R"({"type":"Digits"})") ==
        "tokenizer.json: pre_tokenizer: no ByteLevel in it; only byte-level vocabularies are supported");
  CHECK(error([](json::value& v) {
          v.at("pre_tokenizer") = sequence(R"({"type":"Split","behavior":"Isolated","pattern":{"Regex":"(a"}})", false);
        }) == "tokenizer.json: pre_tokenizer.pretokenizers[0].pattern.Regex: missing closing parenthesis");
  CHECK(error([](json::value& v) {
          v.at("pre_tokenizer") = sequence(R"({"type":"Split","behavior":"Removed","pattern":{"Regex":"a"}})", false);
        }) == "tokenizer.json: pre_tokenizer.pretokenizers[0].behavior: Removed is not supported");
  CHECK(set("decoder", R"({"type":"WordPiece"})") == "tokenizer.json: decoder.type: WordPiece is not supported");
  CHECK(set("post_processor", R"({"type":"BertProcessing"})") ==
        "tokenizer.json: post_processor.type: BertProcessing is not supported");
  CHECK(model("type", "\"Unigram\"") == "tokenizer.json: model.type: Unigram is not supported");
  CHECK(model("byte_fallback", "true") == "tokenizer.json: model.byte_fallback: true is not supported");
  CHECK(model("vocab", "{}") == "tokenizer.json: model.vocab: 0 entries are not 1 to 4194304");
  CHECK(model("vocab", R"({"a":0})") == "tokenizer.json: model.vocab: no entry for byte 0");
  CHECK(model("vocab", R"({"a":0,"b":0})") == "tokenizer.json: model.vocab.b: id 0 is taken by another entry");
  CHECK(model("vocab", R"({"a":1000000})") == "tokenizer.json: model.vocab.a: 1000000 is not in 0 to 1026");
  CHECK(model("merges", R"(["ab"])") ==
        "tokenizer.json: model.merges[0]: expected two tokens with one space between, found ab");
  CHECK(model("merges", R"([["a"]])") == "tokenizer.json: model.merges[0]: expected two tokens, found a list");
  CHECK(model("merges", R"(["t h","q \u4e00"])") == "tokenizer.json: model.merges[1]: \u4e00 is not in the vocabulary");
  CHECK(model("merges", R"(["Q z"])") == "tokenizer.json: model.merges[0]: Qz is not in the vocabulary");
  auto added = [&](const char* token) {
    return error([&](json::value& v) { v.at("added_tokens").as_array().push_back(json::parse(token)); });
  };
  CHECK(added(R"({"id":5,"content":"<x>"})") == "tokenizer.json: added_tokens[1].id: 5 is taken by another token");
  CHECK(added(R"({"id":9999999,"content":"<x>"})") ==
        "tokenizer.json: added_tokens[1].id: 9999999 is not in 0 to 5120");
  CHECK(added(R"({"id":2048,"content":""})") == "tokenizer.json: added_tokens[1].content: 0 bytes are not 1 to 1024");
  CHECK(added(R"({"id":2048,"content":"<x>","lstrip":true})") ==
        "tokenizer.json: added_tokens[1].lstrip: true is not supported");
  temp_dir dir;
  CHECK(config_error_of([&] { tokenizer::load(dir.path()); }) ==
        (dir / "tokenizer.json").string() + ": No such file or directory");
}
