// Files that a person or a disk got wrong: whatever the bytes, the readers give a value or a config_error of one line,
// and never read outside their input (run under ASan, this is what the test is for).
#include <doctest/doctest.h>

#include <boost/json.hpp>
#include <functional>
#include <random>

#include "cokv/engine/model_config.hpp"
#include "cokv/engine/tokenizer.hpp"
#include "cokv/engine/weights.hpp"
#include "files.hpp"

using namespace cokv;
using namespace cokv::test;
namespace json = boost::json;

namespace {

using engine = std::mt19937_64;

std::size_t below(engine& random, std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(random() % n); }

// Flips, cuts, doubles, swaps and overwrites, with pieces that JSON readers stumble over.
std::string mutate(std::string bytes, engine& random) {
  static const std::vector<std::string> pieces{"null",
                                               "-1",
                                               "0",
                                               "1e308",
                                               "1e999",
                                               "18446744073709551615",
                                               "9223372036854775808",
                                               "{}",
                                               "[]",
                                               "\"\"",
                                               "\"",
                                               "{",
                                               "}",
                                               "[",
                                               "]",
                                               ",",
                                               ":",
                                               "true",
                                               "\\u",
                                               "\xff",
                                               "\\",
                                               "\n",
                                               "0.5",
                                               "4294967296",
                                               "\"\\u0000\"",
                                               " ",
                                               std::string(1, '\0')};
  for (auto n = 1 + below(random, 4); n > 0; --n) {
    auto at = below(random, bytes.size() + 1);
    auto length = below(random, std::min<std::size_t>(bytes.size() - at, 40) + 1);
    switch (below(random, 7)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(random, 8)));
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2:
        bytes.erase(at, length);
        break;
      case 3:
        bytes.insert(at, bytes.substr(at, length));
        break;
      case 4:
        bytes.replace(at, length, pieces[below(random, pieces.size())]);
        break;
      case 5:
        bytes.insert(at, pieces[below(random, pieces.size())]);
        break;
      default:
        for (std::size_t i = 0; i < length; ++i) bytes[at + i] = static_cast<char>(random());
    }
  }
  return bytes;
}

// Puts another value in a random place of a valid document: gets past the parser, so it reaches the checks behind it.
void mutate_value(json::value& v, engine& random) {
  static const json::value others = json::parse(
      R"([null,-1,0,1,0.5,1e300,18446744073709551615,4294967296,65536,"","x",true,[],{},[1],[[]],{"type":"Sequence"}])");
  auto* object = v.if_object();
  auto* array = v.if_array();
  auto size = object ? object->size() : array ? array->size() : 0;
  if (size > 0 && below(random, 5) != 0) {
    auto i = below(random, std::min<std::size_t>(size, 400));
    if (object && below(random, 6) == 0) {
      object->erase(object->begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      mutate_value(object ? (object->begin() + static_cast<std::ptrdiff_t>(i))->value() : (*array)[i], random);
    }
    return;
  }
  v = others.as_array()[below(random, others.as_array().size())];
}

// Runs `read`; true when it gave a value, false when a config_error. Anything else fails the test.
bool reads(const std::function<void()>& read, const std::string& name) {
  try {
    read();
    return true;
  } catch (const config_error& e) {
    std::string text = e.what();
    CAPTURE(text);
    CHECK(text.find(name) != text.npos);
    CHECK(text.find('\n') == text.npos);
    CHECK(text.size() < 1000);
  } catch (const std::exception& e) {
    FAIL("not a config_error: ", e.what());
  }
  return false;
}

// A small tokenizer with all the parts that a file can have.
json::value small_tokenizer() {
  auto v = json::parse(slurp(tiny() / "tokenizer.json"));
  auto& model = v.at("model").as_object();
  json::object vocab;
  for (auto& [key, id] : model.at("vocab").as_object())
    if (id.to_number<int>() < 300) vocab[key] = id;
  json::array merges;
  for (auto& m : model.at("merges").as_array()) {
    std::string text(m.as_string().data(), m.as_string().size());
    auto space = text.find(' ');
    auto has = [&](const std::string& key) { return vocab.contains(key); };
    if (has(text.substr(0, space)) && has(text.substr(space + 1)) &&
        has(text.substr(0, space) + text.substr(space + 1)))
      merges.push_back(m);
  }
  model["vocab"] = std::move(vocab);
  model["merges"] = std::move(merges);
  v.at("added_tokens").as_array().push_back({{"id", 300}, {"content", "<x>"}, {"special", false}});
  v.as_object()["pre_tokenizer"] = json::parse(
      R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\s+|\\p{L}+"},"behavior":"Isolated","invert":false},)"
      R"({"type":"Digits","individual_digits":true},{"type":"ByteLevel","add_prefix_space":false,"use_regex":true}]})");
  v.as_object()["post_processor"] = json::parse(
      R"({"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"b","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"special_tokens":{"b":{"id":"b","ids":[0],"tokens":["b"]}}}]})");
  return v;
}

void use(const tokenizer& tokens) {
  for (auto* text : {"And it came to pass 123 <x><|endoftext|>", "\xff é 日本 \t\n", ""}) {
    auto ids = tokens.encode(text, {.add_special = false});
    CHECK(tokens.decode_bytes(ids) == text);
  }
}

void use(const weights& tensors) {
  unsigned sum = 0;
  for (auto& [name, t] : tensors.tensors())
    for (auto b : t.bytes) sum += std::to_integer<unsigned>(b);
  CHECK(sum != 1);
}

}  // namespace

TEST_CASE("a damaged config.json or generation_config.json is a config or one line") {
  auto config = slurp(tiny() / "config.json"), generation = slurp(tiny() / "generation_config.json");
  auto scaled = json::parse(config);
  scaled.as_object()["rope_scaling"] = json::parse(
      R"({"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":8192})");
  scaled.as_object()["eos_token_id"] = json::array{0, 1};
  engine random(1);
  std::size_t good = 0, bad = 0;
  for (int round = 0; round < 6000; ++round) {
    auto count = [&](bool ok) { ++(ok ? good : bad); };
    count(reads([&, text = mutate(config, random)] { parse_model_config(text, "config.json"); }, "config.json"));
    count(reads([&, text = mutate(generation, random)] { parse_model_config(config, "config.json", text, "g.json"); },
                "g.json"));
    auto v = scaled;
    mutate_value(v, random);
    count(reads([&] { parse_model_config(json::serialize(v), "config.json"); }, "config.json"));
  }
  CHECK(good > 500);
  CHECK(bad > 5000);
}

TEST_CASE("a damaged tokenizer.json is a tokenizer that keeps its promises or one line") {
  auto valid = small_tokenizer();
  use(tokenizer::parse(json::serialize(valid), "tokenizer.json"));
  auto text = json::serialize(valid);
  engine random(2);
  std::size_t good = 0, bad = 0;
  auto count = [&](const std::string& bytes) {
    bool ok = reads(
        [&] {
          auto tokens = tokenizer::parse(bytes, "tokenizer.json");
          tokens.encode("And <x> 12\n");
        },
        "tokenizer.json");
    ++(ok ? good : bad);
  };
  for (int round = 0; round < 1500; ++round) {
    count(mutate(text, random));
    auto v = valid;
    mutate_value(v, random);
    count(json::serialize(v));
  }
  CHECK(good > 100);
  CHECK(bad > 500);
}

TEST_CASE("damaged safetensors are views inside the file or one line") {
  std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},"c":{"dtype":"F16","shape":[],"data_offsets":[32,34]}})";
  auto valid = safetensors(header, std::string(34, 'x'));
  temp_dir dir;
  engine random(3);
  std::size_t good = 0, bad = 0;
  auto count = [&](const std::string& bytes) {
    dir.write("model.safetensors", bytes);
    bool ok = reads([&] { use(weights::open(dir.path())); }, "model.safetensors");
    ++(ok ? good : bad);
  };
  for (int round = 0; round < 1500; ++round) {
    count(mutate(valid, random));
    auto v = json::parse(header);
    mutate_value(v, random);
    count(safetensors(json::serialize(v), std::string(34, 'x')));
    auto longer = valid;  // the length field
    longer[below(random, 8)] = static_cast<char>(random());
    count(longer);
  }
  CHECK(good > 20);
  CHECK(bad > 2000);
}

TEST_CASE("every truncation of a safetensors file is refused") {
  std::string header = R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})";
  auto valid = safetensors(header, std::string(16, 'x'));
  temp_dir dir;
  for (std::size_t n = 0; n < valid.size(); ++n) {
    dir.write("model.safetensors", valid.substr(0, n));
    CHECK(!reads([&] { weights::open(dir.path()); }, "model.safetensors"));
  }
}

TEST_CASE("a damaged shard index is a checkpoint or one line") {
  temp_dir dir;
  dir.write("one.safetensors", safetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "AAAAAAAA"));
  dir.write("two.safetensors", safetensors(R"({"b":{"dtype":"F16","shape":[],"data_offsets":[0,2]}})", "BB"));
  std::string index = R"({"metadata":{"total_size":10},"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})";
  engine random(4);
  std::size_t bad = 0;
  for (int round = 0; round < 1500; ++round) {
    auto v = json::parse(index);
    mutate_value(v, random);
    for (auto& text : {mutate(index, random), json::serialize(v)}) {
      dir.write("model.safetensors.index.json", text);
      bad += !reads([&] { use(weights::open(dir.path())); }, dir.path().filename().string());
    }
  }
  CHECK(bad > 1000);
}

TEST_CASE("input that is nothing like a checkpoint") {
  auto deep = std::string(100'000, '[');
  auto nested = [](const char* open, int n) {
    std::string out;
    for (int i = 0; i < n; ++i) out += open;
    return out;
  };
  std::vector<std::string> texts{"",
                                 " ",
                                 "null",
                                 "0",
                                 "\"x\"",
                                 "{}",
                                 "[]",
                                 "\xef\xbb\xbf{}",
                                 "{\"a\":}",
                                 "<html></html>",
                                 deep,
                                 nested("{\"a\":", 100'000),
                                 std::string(1000, '\0'),
                                 "{\"model\":{\"vocab\":[]}}",
                                 std::string("\x89PNG\r\n\x1a\n", 8),
                                 "{\"\n\":1,\"\n\":2}"};
  temp_dir dir;
  for (auto& text : texts) {
    CHECK(!reads([&] { parse_model_config(text, "config.json"); }, "config.json"));
    CHECK(!reads([&] { tokenizer::parse(text, "tokenizer.json"); }, "tokenizer.json"));
    dir.write("model.safetensors", text);
    CHECK(!reads([&] { weights::open(dir.path()); }, "model.safetensors"));
    // As a header, an empty object describes an empty file, which is valid.
    dir.write("model.safetensors", safetensors(text, ""));
    CHECK(reads([&] { weights::open(dir.path()); }, "model.safetensors") == (text == "{}"));
  }
}
