// Every family's miniature against what PyTorch and transformers computed with it (scripts/golden).
#include <doctest/doctest.h>

#include <boost/json.hpp>
#include <cmath>
#include <map>

#include "engine/files.hpp"
#include "engine/golden.hpp"
#include "engine/model_bench.hpp"

using namespace cokv;
using namespace cokv::test;

// 1e-5 tells GELU from its approximation and an epsilon from another; ours are off by 1e-6.
TEST_CASE("every family gives the reference's logits, and in f32 its tokens") {
  for (auto& family : families())
    for (auto type : {dtype::f32, dtype::bf16}) {
      auto m = load_model(family.folder, {.compute = type});
      for (auto& c : family.cases) {
        INFO(family.name, " in ", to_string(type), ", a prompt of ", c.prompt.size());
        model_bench b(m, 16);
        CHECK(distance(b.prefill(c.prompt, 1024), c.logits) < (type == dtype::f32 ? 1e-5f : 0.02f));
        if (type == dtype::f32) CHECK(b.greedy(c.prompt, c.tokens.size()) == c.tokens);
      }
    }
}

TEST_CASE("every family gives the same bits however a prompt is cut, paged and batched") {
  for (auto& family : families())
    for (auto type : {dtype::f32, dtype::bf16}) {
      INFO(family.name, " in ", to_string(type));
      auto m = load_model(family.folder, {.compute = type, .batch_invariant = true});
      auto prompt = family.cases.back().prompt;
      prompt.insert(prompt.end(), family.cases.back().tokens.begin(), family.cases.back().tokens.end());
      model_bench whole(m, 16);
      const auto logits = whole.prefill(prompt, 1024);
      const auto kv = whole.kv_bytes(prompt.size());
      for (auto [block_tokens, chunk] : {std::pair{16u, 1u}, {8u, 7u}, {32u, 33u}}) {
        INFO("block ", block_tokens, " chunk ", chunk);
        model_bench b(m, block_tokens);
        CHECK(b.prefill(prompt, chunk) == logits);
        CHECK(b.kv_bytes(prompt.size()) == kv);
      }
      model_bench b(m, 16);
      b.run({{{70, 71, 72}, 0, {prompt.rbegin(), prompt.rbegin() + 40}, true},
             {b.table(prompt.size()), 0, prompt, true},
             {{67}, 0, {4}, true}});
      auto mine = b.step->logits_of(1);
      CHECK(std::vector<float>(mine.begin(), mine.end()) == logits);
      CHECK(b.kv_bytes(prompt.size()) == kv);
    }
}

namespace {

// A checkpoint's folder, copied to be changed: `change` gets each file's tensors by name and its data.
struct changed_checkpoint {
  template <class F>
  changed_checkpoint(const std::filesystem::path& from, F change) {
    for (auto& entry : std::filesystem::directory_iterator(from)) {
      const auto name = entry.path().filename().string();
      auto bytes = slurp(entry.path());
      if (entry.path().extension() == ".safetensors") {
        std::uint64_t header = 0;
        std::memcpy(&header, bytes.data(), sizeof header);
        auto tensors = boost::json::parse(bytes.substr(8, header)).as_object();
        auto data = bytes.substr(8 + header);
        tensors.erase("__metadata__");
        change(tensors, data);
        auto text = boost::json::serialize(tensors);
        if (text.size() % 2 == 0) text += ' ';  // no element is where it would be aligned
        bytes = safetensors(text, data, false);
      }
      dir.write(name, bytes);
    }
  }
  std::string error() const {
    return config_error_of([&] { load_model(dir.path(), {.compute = dtype::f32}); });
  }
  temp_dir dir;
};

std::vector<std::string> names_of(const golden& family) {
  std::vector<std::string> out;
  changed_checkpoint(family.folder, [&](boost::json::object& tensors, std::string&) {
    for (auto& t : tensors) out.emplace_back(t.key());
  });
  return out;
}

bool sharded(const golden& family) { return std::filesystem::exists(family.folder / "model.safetensors.index.json"); }

}  // namespace

TEST_CASE("a tensor that is missing, of another shape or not finite is named, in every family") {
  for (auto& family : families()) {
    INFO(family.name);
    for (auto& name : names_of(family)) {
      INFO(name);
      changed_checkpoint nan(family.folder, [&](boost::json::object& tensors, std::string& data) {
        if (!tensors.contains(name)) return;
        const auto end = tensors.at(name).at("data_offsets").at(1).to_number<std::size_t>();
        data[end - 1] = '\x7f', data[end - 2] = '\xff';  // the last element is not a number in any type
      });
      CHECK(nan.error().find(name + ": element ") != std::string::npos);
      CHECK(nan.error().ends_with("is not a number"));

      changed_checkpoint shape(family.folder, [&](boost::json::object& tensors, std::string&) {
        if (!tensors.contains(name)) return;
        auto& d = tensors.at(name).at("shape").as_array();
        d.insert(d.begin(), 1);
      });
      CHECK(shape.error().find(name + ": expected shape [") != std::string::npos);

      if (sharded(family)) continue;  // there, the index names it first
      changed_checkpoint missing(family.folder, [&](boost::json::object& tensors, std::string&) {
        auto t = tensors.at(name);
        tensors.erase(name);
        tensors["x" + name] = t;
      });
      CHECK(missing.error().find(name + ": missing, expected shape [") != std::string::npos);
    }
  }
}

TEST_CASE("names without their prefix, as older checkpoints have them, at odd addresses, give the same tokens") {
  for (auto& family : families()) {
    std::string prefix;
    if (family.name == "gpt2" || family.name == "bloom") prefix = "transformer.";
    if (family.name.starts_with("opt")) prefix = "model.";
    if (prefix.empty()) continue;
    INFO(family.name);
    changed_checkpoint bare(family.folder, [&](boost::json::object& tensors, std::string&) {
      boost::json::object renamed;
      for (auto& t : tensors) {
        std::string name(t.key());
        if (name.starts_with(prefix)) name = name.substr(prefix.size());
        CHECK_FALSE(renamed.contains(name));
        renamed[name] = t.value();
      }
      tensors = renamed;
    });
    model_bench b(load_model(bare.dir.path(), {.compute = dtype::f32}), 16);
    auto& c = family.cases.back();
    CHECK(distance(b.prefill(c.prompt, 1024), c.logits) < 1e-5f);
    CHECK(b.greedy(c.prompt, c.tokens.size()) == c.tokens);
  }
}

TEST_CASE("an output matrix beside tied embeddings must be the same") {
  auto& qwen2 = families()[2];
  REQUIRE(qwen2.name == "qwen2");
  const std::string table = "model.embed_tokens.weight";
  for (bool same : {true, false}) {
    changed_checkpoint both(qwen2.folder, [&](boost::json::object& tensors, std::string& data) {
      auto t = tensors.at(table);
      const auto from = t.at("data_offsets").at(0).to_number<std::size_t>(),
                 to = t.at("data_offsets").at(1).to_number<std::size_t>();
      auto copy = data.substr(from, to - from);
      if (!same) copy[10] = static_cast<char>(copy[10] ^ 1);
      t.at("data_offsets") = boost::json::array{data.size(), data.size() + copy.size()};
      data += copy;
      tensors["lm_head.weight"] = t;
    });
    if (same)
      CHECK(both.error() == "[no error]");
    else
      CHECK(both.error().ends_with(
          "lm_head.weight: differs from the embedding, and tie_word_embeddings says that they are the same"));
  }
}

TEST_CASE("a step beyond a model's positions is refused") {
  for (auto& family : families()) {
    model_bench b(load_model(family.folder, {.compute = dtype::f32}), 16);
    const auto most = b.m->config().max_positions;
    auto ask = [&](std::uint32_t start) {
      b.step->sequences = {{b.table(most + 16), start, {1, 2}, true}};
      return b.m->forward(0, b.step, b.kv, b.compute);
    };
    CHECK(ask(most - 1) == errc::invalid_argument);
    CHECK(!ask(most - 2));
    b.compute.async_drain([](error_code) {});
    b.io.run();
  }
}
