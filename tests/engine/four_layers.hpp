// Every family's miniature with four layers, for four stages, and random weights.
#pragma once

#include <doctest/doctest.h>

#include <boost/json.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cokv/engine/model.hpp"
#include "engine/files.hpp"

namespace cokv::test {

class four_layers {
 public:
  explicit four_layers(const std::string& family) {
    auto config =
        boost::json::parse(slurp(source_dir() / "tests/engine/fixtures/families" / family / "config.json")).as_object();
    std::size_t told = 0;
    for (auto* name : {"num_hidden_layers", "n_layer"})
      if (auto* layers = config.if_contains(name)) *layers = 4, ++told;
    REQUIRE(told == 1);
    folder_->write("config.json", boost::json::serialize(config));
  }

  // In f32.
  std::shared_ptr<model> operator()(model_part p = {}) const {
    return random_model(*folder_ / "config.json", {.compute = dtype::f32, .part = std::move(p)});
  }

 private:
  std::shared_ptr<const temp_dir> folder_ = std::make_shared<temp_dir>();
};

// One of each.
inline const std::vector<std::string>& family_folders() {
  static const std::vector<std::string> all{"llama", "qwen2", "glm", "gpt2", "opt", "bloom"};
  return all;
}

}  // namespace cokv::test
