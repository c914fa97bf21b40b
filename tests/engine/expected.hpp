// The bundled model and the continuations that a reference implementation gave for it.
#pragma once

#include <doctest/doctest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cokv/engine/model.hpp"

namespace cokv::test {

struct expected_case {
  std::string prompt;
  std::vector<token_id> prompt_tokens, tokens;
  std::string text;
  std::vector<std::pair<token_id, double>> top5;
};

inline std::filesystem::path model_dir() { return std::filesystem::path(COKV_SOURCE_DIR) / "models/tiny-kjv"; }

inline const std::vector<expected_case>& expected_cases() {
  static const auto cases = [] {
    std::ifstream in(model_dir() / "expected.json");
    std::string text(std::istreambuf_iterator<char>(in), {});
    std::vector<expected_case> out;
    const auto all = boost::json::parse(text);
    for (auto& c : all.at("cases").as_array()) {
      expected_case e;
      e.prompt = c.at("prompt").as_string();
      e.prompt_tokens = boost::json::value_to<std::vector<token_id>>(c.at("prompt_tokens"));
      e.tokens = boost::json::value_to<std::vector<token_id>>(c.at("tokens"));
      e.text = c.at("text").as_string();
      for (auto& l : c.at("first_top5_logits").as_array())
        e.top5.emplace_back(l.at(0).to_number<token_id>(), l.at(1).to_number<double>());
      out.push_back(std::move(e));
    }
    REQUIRE(out.size() == 9);
    return out;
  }();
  return cases;
}

// The same bits in any batch, also in bf16, on any processor.
inline std::shared_ptr<model> tiny_model(dtype type) {
  static std::map<dtype, std::shared_ptr<model>> loaded;
  auto& m = loaded[type];
  if (!m) m = load_model(model_dir(), {.compute = type, .batch_invariant = true});
  return m;
}

}  // namespace cokv::test
