// Every family's miniature, and what PyTorch and transformers computed with it (scripts/golden).
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "cokv/engine/token.hpp"
#include "engine/files.hpp"

namespace cokv::test {

struct golden_case {
  std::vector<token_id> prompt, tokens;
  std::vector<float> logits, leads;  // behind the prompt; of each token over the next best
};

struct golden {
  std::string name;
  std::filesystem::path folder;
  std::vector<golden_case> cases;
};

inline const std::vector<golden>& families() {
  static const auto all = [] {
    std::vector<golden> out;
    for (auto* name : {"llama", "llama-bias", "qwen2", "glm", "gpt2", "opt", "opt-350m", "opt-bare", "bloom"}) {
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
inline float distance(std::span<const float> got, std::span<const float> want) {
  REQUIRE(got.size() == want.size());
  float largest = 0, off = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(want[i]));
    const float d = std::abs(got[i] - want[i]);
    off = d <= off ? off : std::isnan(d) ? INFINITY : d;
  }
  return off / largest;
}

}  // namespace cokv::test
