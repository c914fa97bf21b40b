#include "generate.hpp"

#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "engine/expected.hpp"

using namespace cokv;

namespace {

struct ran {
  int code;
  std::string out, err;
};

ran generate_with(std::vector<std::string> more, const std::string& model = test::model_dir().string()) {
  std::vector<std::string> arguments{"--log-level", "off", "generate", "--model", model};
  arguments.insert(arguments.end(), more.begin(), more.end());
  std::ostringstream out, err;
  const int code = cli::run(std::move(arguments), out, err);
  return {code, out.str(), err.str()};
}

std::ptrdiff_t lines(const std::string& s) { return std::count(s.begin(), s.end(), '\n'); }

}  // namespace

TEST_CASE("cokv generate --json gives every expected continuation, in bf16 and f32") {
  for (auto* type : {"bf16", "f32"})
    for (auto& c : test::expected_cases()) {
      auto r = generate_with({"--prompt", c.prompt, "--temperature", "0", "--json", "--dtype", type, "--max-tokens",
                              std::to_string(c.tokens.size())});
      INFO(c.prompt, " in ", type, ": ", r.err);
      REQUIRE(r.code == 0);
      CHECK(lines(r.out) == 1);
      const auto o = boost::json::parse(r.out).as_object();
      CHECK(boost::json::value_to<std::vector<token_id>>(o.at("prompt_tokens")) == c.prompt_tokens);
      CHECK(boost::json::value_to<std::vector<token_id>>(o.at("tokens")) == c.tokens);
      CHECK(o.at("text").as_string() == c.text);
      CHECK(o.at("timing").at("ttft_ms").as_double() > 0);
    }
}

TEST_CASE("cokv generate prints the text, and the same seed prints the same") {
  auto first = generate_with({"--prompt", "And God said", "--max-tokens", "12", "--seed", "5"});
  CHECK(first.code == 0);
  CHECK(first.out.size() > 12);
  CHECK(generate_with({"--prompt", "And God said", "--max-tokens", "12", "--seed", "5"}).out == first.out);
  CHECK(generate_with({"--prompt", "And God said", "--max-tokens", "12", "--seed", "6"}).out != first.out);
}

TEST_CASE("cokv generate names what is wrong in one line and ends with 2") {
  std::string huge;
  for (int i = 0; i < 9000; ++i) huge += " the";
  for (auto& [arguments, named] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--prompt", ""}, "--prompt"},
           {{"--prompt", huge}, "--prompt"},
           {{}, "--prompt"},
           {{"--prompt", "x", "--max-tokens", "0"}, "--max-tokens"},
           {{"--prompt", "x", "--max-tokens", "many"}, "--max-tokens"},
           {{"--prompt", "x", "--max-tokens", "9999999999"}, "--max-tokens: 9999999999: takes an integer from 1"},
           {{"--prompt", "x", "--max-tokens"}, "--max-tokens: needs a value"},
           {{"--prompt", "x", "--seed", "-1"}, "--seed: -1: takes an integer from 0"},
           {{"--prompt", "x", "--temperature", "-1"}, "--temperature"},
           {{"--prompt", "x", "--temperature", "1e300"}, "--temperature: 1e300: takes a number from 0 to 100"},
           {{"--prompt", "x", "--temperature", "nan"}, "--temperature: nan: takes a number"},
           {{"--prompt", "x", "--temperature", "hot"}, "--temperature: hot: takes a number"},
           {{"--prompt", "x", "--top-p", "0"}, "--top-p"},
           {{"--prompt", "x", "--dtype", "f16"}, "--dtype"},
           {{"--prompt", "x", "--device", "tpu"}, "--device"},
           {{"--prompt", "x", "--threads", "-2"}, "--threads"},
       }) {
    auto r = generate_with(arguments);
    INFO(named, ": ", r.err);
    CHECK(r.code == 2);
    CHECK(r.out.empty());
    CHECK(lines(r.err) == 1);
    CHECK(r.err.find(named) != std::string::npos);
  }
  auto r = generate_with({"--prompt", "x"}, "/nowhere");
  CHECK(r.code == 2);
  CHECK(r.err == "cokv: /nowhere/config.json: No such file or directory\n");
}

TEST_CASE("cokv generate computes with random weights of any shape that has room for the tokenizer's tokens") {
  const std::string shapes = std::string(COKV_SOURCE_DIR) + "/tests/engine/fixtures/families/qwen2/config.json";
  auto r = generate_with({"--prompt", "x", "--random-weights", shapes});
  CHECK(r.code == 2);
  CHECK(r.err == "cokv: " + test::model_dir().string() + ": its tokenizer has token ids up to 2047, and " + shapes +
                     "'s vocab_size is 320\n");
  std::ifstream in(shapes);
  std::string text(std::istreambuf_iterator<char>(in), {});
  text.replace(text.find("320"), 3, "2048");
  const auto config = std::filesystem::temp_directory_path() / ("cokv_shape_" + std::to_string(::getpid()) + ".json");
  std::ofstream(config) << text;
  auto run = [&] {
    return generate_with({"--prompt", "And God said", "--max-tokens", "12", "--random-weights", config.string(),
                          "--temperature", "0", "--json"});
  };
  r = run();
  INFO(r.err);
  REQUIRE(r.code == 0);
  const auto tokens = boost::json::parse(r.out).at("tokens");
  CHECK(tokens.as_array().size() > 0);
  CHECK(boost::json::parse(run().out).at("tokens") == tokens);
  std::filesystem::remove(config);
}
