#include "cokv/engine/tokenizer.hpp"

#include <doctest/doctest.h>

#include <boost/json.hpp>

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

}  // namespace

TEST_CASE("the bundled model's prompts become the tokens that it was measured with") {
  auto tokens = tokenizer::load(tiny());
  auto expected = json::parse(slurp(tiny() / "expected.json"));
  for (auto& item : expected.at("cases").as_array()) {
    std::string prompt = item.at("prompt").as_string().c_str();
    CHECK(tokens.encode(prompt) == ids_of(item.at("prompt_tokens")));
    CHECK(tokens.decode(ids_of(item.at("tokens"))) == std::string(item.at("text").as_string().c_str()));
  }
}
