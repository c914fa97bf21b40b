// Every family's miniature against what PyTorch and transformers computed with it (scripts/golden).
#include <doctest/doctest.h>

#include <boost/json.hpp>
#include <cmath>
#include <map>

#include "engine/files.hpp"
#include "engine/model_bench.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

struct golden_case {
  std::vector<token_id> prompt, tokens;
  std::vector<float> logits, leads;  // behind the prompt; of each token over the next best
};

struct golden {
  std::string name;
  std::filesystem::path folder;
  std::vector<golden_case> cases;
};

const std::vector<golden>& families() {
  static const auto all = [] {
    std::vector<golden> out;
    for (auto* name : {"llama", "llama-bias", "qwen2", "glm", "gpt2", "opt", "opt-350m", "bloom"}) {
      golden g{name, source_dir() / "tests/engine/fixtures/families" / name, {}};
      const auto text = boost::json::parse(slurp(g.folder / "golden.json"));
      for (auto& c : text.at("cases").as_array())
        g.cases.push_back({boost::json::value_to<std::vector<token_id>>(c.at("prompt")),
                           boost::json::value_to<std::vector<token_id>>(c.at("tokens")),
                           boost::json::value_to<std::vector<float>>(c.at("logits")),
                           boost::json::value_to<std::vector<float>>(c.at("leads"))});
      REQUIRE(g.cases.size() == 3);
      out.push_back(std::move(g));
    }
    return out;
  }();
  return all;
}

// The largest difference, in parts of the largest logit. A NaN is infinitely far off.
float distance(std::span<const float> got, std::span<const float> want) {
  REQUIRE(got.size() == want.size());
  float largest = 0, off = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(want[i]));
    const float d = std::abs(got[i] - want[i]);
    off = d <= off ? off : std::isnan(d) ? INFINITY : d;
  }
  return off / largest;
}

}  // namespace

TEST_CASE("every family gives the reference's logits, and in f32 its tokens") {
  for (auto& family : families())
    for (auto type : {dtype::f32, dtype::bf16}) {
      auto m = load_model(family.folder, {.compute = type});
      for (auto& c : family.cases) {
        INFO(family.name, " in ", to_string(type), ", a prompt of ", c.prompt.size());
        model_bench b(m, 16);
        CHECK(distance(b.prefill(c.prompt, 1024), c.logits) < (type == dtype::f32 ? 1e-3f : 0.02f));
        if (type == dtype::f32) CHECK(b.greedy(c.prompt, c.tokens.size()) == c.tokens);
      }
    }
}

TEST_CASE("every family gives the same bits however a prompt is cut, paged and batched") {
  for (auto& family : families())
    for (auto type : {dtype::f32, dtype::bf16}) {
      INFO(family.name, " in ", to_string(type));
      auto m = load_model(family.folder, {.compute = type});
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

TEST_CASE("a tensor that is missing, of another shape or not finite is named, in every family") {
  for (auto& family : families()) {
    INFO(family.name);
    temp_dir dir;
    for (auto& file : std::filesystem::directory_iterator(family.folder))
      std::filesystem::copy(file.path(), dir / file.path().filename().string());
    for (auto& file : std::filesystem::directory_iterator(dir.path())) {
      if (file.path().extension() != ".safetensors") continue;
      auto bytes = slurp(file.path());
      std::uint64_t header = 0;
      std::memcpy(&header, bytes.data(), sizeof header);
      const auto tensors = boost::json::parse(bytes.substr(8, header));
      for (auto& [key, t] : tensors.as_object()) {
        if (key == "__metadata__") continue;
        const std::string name(key);
        INFO(name);
        const auto* p = &t.at("data_offsets").as_array();
        const auto end = static_cast<std::size_t>(p->at(1).to_number<std::uint64_t>()) + 8 + header;
        const auto is = t.at("dtype").as_string();
        auto broken = bytes;
        broken[end - 1] = '\x7f', broken[end - 2] = '\xff';  // the last element is not a number in any type
        dir.write(file.path().filename().string(), broken);
        const auto what = config_error_of([&] { load_model(dir.path()); });
        CHECK(what.find(name + ": element ") != what.npos);
        CHECK(what.ends_with("is not a number"));
      }
      dir.write(file.path().filename().string(), bytes);
    }
  }
}
