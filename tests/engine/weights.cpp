#include "cokv/engine/weights.hpp"

#include <doctest/doctest.h>

#include "cokv/engine/model_config.hpp"
#include "files.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

const std::string two_tensors =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";

std::string open_error(const temp_dir& dir, const std::string& bytes) {
  dir.write("model.safetensors", bytes);
  auto text = config_error_of([&] { weights::open(dir.path()); });
  auto at = text.find("model.safetensors");
  return at == text.npos ? text : text.substr(at);
}

}  // namespace

TEST_CASE("the bundled checkpoint opens, and its tensors have the shapes that its config implies") {
  auto config = load_model_config(tiny());
  auto tensors = weights::open(tiny());
  CHECK(tensors.tensors().size() == 74);
  auto& embedding = tensors.expect("model.embed_tokens.weight", {config.vocab, config.hidden});
  CHECK(embedding.type == dtype::bf16);
  CHECK(embedding.elements() == std::uint64_t{config.vocab} * config.hidden);
  CHECK(tensors.expect("model.layers.7.self_attn.k_proj.weight", {config.kv_heads * config.head_dim, config.hidden})
            .bytes.size() == 65536);
  CHECK(!tensors.contains("lm_head.weight"));
  std::uint64_t sum = 0;
  for (auto& [name, t] : tensors.tensors()) sum += t.bytes.size();
  CHECK(tensors.bytes() == sum);
}

TEST_CASE("a view shows the file's bytes, and keep_alive outlives the handle") {
  temp_dir dir;
  std::string data(32, '\0');
  for (int i = 0; i < 32; ++i) data[i] = static_cast<char>(i);
  dir.write("model.safetensors", safetensors(two_tensors, data));
  std::shared_ptr<const void> keep;
  tensor_view b;
  {
    auto tensors = weights::open(dir.path());
    b = tensors.expect("b", {4});
    keep = tensors.keep_alive();
  }
  CHECK(b.type == dtype::bf16);
  CHECK(std::memcmp(b.bytes.data(), data.data() + 24, 8) == 0);
}

TEST_CASE("expect names the tensor, the shape expected and the shape found") {
  temp_dir dir;
  dir.write("model.safetensors", safetensors(two_tensors, std::string(32, 'x')));
  auto tensors = weights::open(dir.path());
  auto where = (dir.path() / "model.safetensors").string();
  CHECK(config_error_of([&] { tensors.expect("a", {3, 2}); }) == where + ": a: expected shape [3, 2], found [2, 3]");
  CHECK(config_error_of([&] { tensors.expect("a", {}); }) == where + ": a: expected shape [], found [2, 3]");
  CHECK(config_error_of([&] { tensors.expect("c", {1}); }) == where + ": c: missing, expected shape [1]");
}

TEST_CASE("shards that an index lists are one checkpoint") {
  temp_dir dir;
  dir.write("one.safetensors", safetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "AAAAAAAA"));
  dir.write("two.safetensors", safetensors(R"({"b":{"dtype":"F16","shape":[],"data_offsets":[0,2]}})", "BB"));
  auto index = [&](const std::string& map) {
    dir.write("model.safetensors.index.json", R"({"metadata":{"total_size":10},"weight_map":)" + map + "}");
    auto text = config_error_of([&] { weights::open(dir.path()); });
    return text.starts_with(dir.path().string()) ? text.substr(dir.path().string().size() + 1) : text;
  };
  CHECK(index(R"({"a":"one.safetensors","b":"two.safetensors"})") == "[no error]");
  auto tensors = weights::open(dir.path());
  CHECK(tensors.bytes() == 10);
  CHECK(tensors.expect("b", {}).elements() == 1);
  CHECK(index(R"({"a":"two.safetensors"})") == "model.safetensors.index.json: weight_map.a: is not in two.safetensors");
  CHECK(index(R"({"a":"../one.safetensors"})") ==
        "model.safetensors.index.json: weight_map.a: ../one.safetensors is not the name of a file beside it");
  CHECK(index(R"({"a":7})") == "model.safetensors.index.json: weight_map.a: expected a file name, found a number");
  CHECK(index(R"({"a":"three.safetensors"})") == "three.safetensors: No such file or directory");
  CHECK(index("[]") == "model.safetensors.index.json: weight_map: expected an object, found a list");
}

TEST_CASE("a folder without weights, and a file that is none, are named") {
  temp_dir dir;
  CHECK(config_error_of([&] { weights::open(dir.path()); }) ==
        dir.path().string() + ": neither model.safetensors nor model.safetensors.index.json is there");
  std::filesystem::create_directory(dir / "model.safetensors");
  CHECK(config_error_of([&] { weights::open(dir.path()); }) ==
        (dir / "model.safetensors").string() + ": not a regular file");
}

TEST_CASE("what a safetensors file claims is checked against its size") {
  temp_dir dir;
  auto header = [&](const std::string& text) { return open_error(dir, safetensors(text, std::string(32, 'x'))); };
  auto tensor = [&](const std::string& fields) { return header("{\"a\":{" + fields + "}}"); };

  CHECK(open_error(dir, safetensors(two_tensors, std::string(32, 'x'))) == "[no error]");
  CHECK(open_error(dir, "") == "model.safetensors: truncated: 0 bytes are no safetensors header");
  CHECK(open_error(dir, "1234567") == "model.safetensors: truncated: 7 bytes are no safetensors header");
  CHECK(open_error(dir, std::string("\x40\0\0\0\0\0\0\0{}", 10)) ==
        "model.safetensors: header: claims 64 bytes, only 2 follow");
  CHECK(open_error(dir, std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10)) ==
        "model.safetensors: header: 18446744073709551615 bytes, more than the limit of 100000000");
  CHECK(open_error(dir, safetensors(two_tensors, std::string(31, 'x'))) ==
        "model.safetensors: b.data_offsets[1]: 32 is not in 24 to 31");
  CHECK(open_error(dir, safetensors(two_tensors, std::string(33, 'x'))) ==
        "model.safetensors: header: tensors take 32 bytes, 33 follow the header");
  CHECK(header("{nonsense") == "model.safetensors: header: not valid JSON: syntax error");
  CHECK(header("[]") == "model.safetensors: expected an object, found a list");
  CHECK(header(R"({"a":{"dtype":"F32","shape":[8],"data_offsets":[0,32]},"a":{}})") ==
        "model.safetensors: header: a: given twice");
  CHECK(header(R"({"a":5})") == "model.safetensors: a: expected an object, found a number");
  CHECK(tensor(R"("shape":[8],"data_offsets":[0,32])") == "model.safetensors: a.dtype: missing");
  CHECK(tensor(R"("dtype":"F7","shape":[4],"data_offsets":[0,32])") ==
        "model.safetensors: a.dtype: F7 is not supported; F32, F16 and BF16 are");
  CHECK(tensor(R"("dtype":"F32","shape":[9],"data_offsets":[0,32])") ==
        "model.safetensors: a.data_offsets: 32 bytes, but shape [9] takes 36");
  CHECK(tensor(R"("dtype":"F32","shape":[-8],"data_offsets":[0,32])") ==
        "model.safetensors: a.shape: -8 is not in 0 to 281474976710656");
  CHECK(tensor(R"("dtype":"F32","shape":[281474976710656,281474976710656],"data_offsets":[0,32])") ==
        "model.safetensors: a.shape: too large");
  CHECK(tensor(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,8],"data_offsets":[0,32])") ==
        "model.safetensors: a.shape: more than 8 dimensions");
  CHECK(tensor(R"("dtype":"F32","shape":[8],"data_offsets":[0])") ==
        "model.safetensors: a.data_offsets: expected two numbers");
  CHECK(tensor(R"("dtype":"F32","shape":[8],"data_offsets":[32,0])") ==
        "model.safetensors: a.data_offsets[1]: 0 is not in 32 to 32");
  CHECK(tensor(R"("dtype":"F32","shape":[1.5],"data_offsets":[0,32])")
            .starts_with("model.safetensors: a.shape: expected a whole number, found 1.5"));
}

TEST_CASE("every byte of the data belongs to exactly one tensor") {
  temp_dir dir;
  auto header = [&](const std::string& text) { return open_error(dir, safetensors(text, std::string(32, 'x'))); };
  CHECK(header(R"({"a":{"dtype":"F32","shape":[5],"data_offsets":[0,20]},)"
               R"("b":{"dtype":"F32","shape":[4],"data_offsets":[16,32]}})") ==
        "model.safetensors: b.data_offsets: overlaps a");
  CHECK(header(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},)"
               R"("b":{"dtype":"F32","shape":[4],"data_offsets":[16,32]}})") ==
        "model.safetensors: b.data_offsets: 4 bytes before it belong to no tensor");
  CHECK(header(R"({"a":{"dtype":"F32","shape":[8],"data_offsets":[0,32]},)"
               R"("empty":{"dtype":"F32","shape":[0,7],"data_offsets":[32,32]}})") == "[no error]");
}

TEST_CASE("tensors of other types may lie in a file, and are an error when they are asked for") {
  temp_dir dir;
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"mask":{"dtype":"BOOL","shape":[4],"data_offsets":[4,8]},)"
      R"("ids":{"dtype":"I64","shape":[1,2],"data_offsets":[8,24]}})";
  dir.write("model.safetensors", safetensors(header, std::string(24, 'x')));
  dir.write("part", safetensors(header, std::string(24, 'x')));
  for (auto* index : {"", R"({"weight_map":{"a":"part","mask":"part","ids":"part"}})"}) {
    if (*index) {
      std::filesystem::remove(dir / "model.safetensors");
      dir.write("model.safetensors.index.json", index);
    }
    auto tensors = weights::open(dir.path());
    CHECK(tensors.tensors().size() == 1);
    CHECK(tensors.bytes() == 4);
    tensors.expect("a", {1});
    CHECK(config_error_of([&] {
            tensors.expect("mask", {4});
          }).ends_with(": mask: BOOL is not supported; F32, F16 and BF16 are"));
    CHECK(config_error_of([&] { tensors.expect("ids", {1, 2}); }).find("ids: I64 is not supported") !=
          std::string::npos);
  }
  CHECK(open_error(dir,
                   safetensors(R"({"m":{"dtype":"I64","shape":[3],"data_offsets":[0,16]}})", std::string(16, 'x'))) ==
        "model.safetensors: m.data_offsets: 16 bytes, but shape [3] takes 24");
}

TEST_CASE("a fingerprint changes with every weight byte and config field that changes KV, and with nothing else") {
  auto config = load_model_config(tiny());
  auto whole = fingerprint(config, weights::open(tiny()));
  CHECK(fingerprint(config, weights::open(tiny())) == whole);

  auto other = config;
  other.sampling.temperature = 0;
  other.eos = {5};
  other.max_positions = 1024;
  CHECK(fingerprint(other, weights::open(tiny())) == whole);
  other = config;
  other.rope_theta = 10001;
  CHECK(fingerprint(other, weights::open(tiny())) != whole);
  other = config;
  other.rope_scaling = rope_llama3{};
  CHECK(fingerprint(other, weights::open(tiny())) != whole);

  temp_dir dir;
  auto bytes = slurp(tiny() / "model.safetensors");
  for (std::size_t at : {bytes.size() - 1, bytes.size() / 2, std::size_t{8 + 7992}}) {
    auto flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    dir.write("model.safetensors", flipped);
    CHECK(fingerprint(config, weights::open(dir.path())) != whole);
  }
}

TEST_CASE("a fingerprint does not depend on how tensors are spread over files, and reports its progress") {
  model_config config;
  temp_dir one, two;
  one.write("model.safetensors", safetensors(two_tensors, std::string(24, 'a') + std::string(8, 'b')));
  two.write("x", safetensors(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", std::string(24, 'a')));
  two.write("y", safetensors(R"({"b":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}})", std::string(8, 'b')));
  two.write("model.safetensors.index.json", R"({"weight_map":{"a":"x","b":"y"}})");
  std::vector<std::uint64_t> seen;
  auto first = fingerprint(config, weights::open(one.path()), [&](std::uint64_t done, std::uint64_t total) {
    seen.push_back(done);
    CHECK(total == 32);
  });
  REQUIRE(seen.size() == 2);
  CHECK((seen[0] == 24 || seen[0] == 8));  // tensors are read beside each other: either may be done first
  CHECK(seen[1] == 32);
  CHECK(fingerprint(config, weights::open(two.path())) == first);
}
