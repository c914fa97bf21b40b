#include "checkpoint.hpp"

#include <doctest/doctest.h>

#include "engine/expected.hpp"

using namespace cokv;

TEST_CASE("a tokenizer with tokens that the embedding has not is refused, and both files are named") {
  const auto text = tokenizer::load(test::model_dir());
  auto config = load_model_config(test::model_dir());
  check_vocabulary({"m", ""}, text, config);
  config.vocab = static_cast<std::uint32_t>(text.size());
  check_vocabulary({"m", ""}, text, config);
  --config.vocab;
  const auto named = "m: its tokenizer has token ids up to " + std::to_string(text.size() - 1) +
                     ", and config.json's vocab_size is " + std::to_string(text.size() - 1);
  CHECK_THROWS_WITH_AS(check_vocabulary({"m", ""}, text, config), named.c_str(), config_error);
}

TEST_CASE("a tier that can't hold a block is refused by its flag") {
  const auto block = kv_block_bytes(load_model_config(test::model_dir()), dtype::bf16, 16);
  CHECK(kv_block_bytes(load_model_config(test::model_dir()), dtype::f32, 16) == 2 * block);
  check_holds_a_block("--kv-host", block, block);
  CHECK_THROWS_WITH_AS(check_holds_a_block("--kv-host", block - 1, block), doctest::Contains("--kv-host: "),
                       config_error);
  CHECK_THROWS_AS(check_holds_a_block("--kv-disk", block + 99, block, 100), config_error);
}

TEST_CASE("what an engine says of its options is said of the flags") {
  CHECK(std::string(by_flag(config_error("kv-blocks: no room")).what()) == "--kv-blocks: no room");
  CHECK(std::string(by_flag(config_error("device cpu: gone")).what()) == "device cpu: gone");
}
