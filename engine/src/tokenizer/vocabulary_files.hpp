// The older form of a byte-level tokenizer: vocab.json and merges.txt, with special tokens in tokenizer_config.json or
// special_tokens_map.json. OPT's checkpoints have no other.
#pragma once

#include <boost/json/value.hpp>
#include <filesystem>

namespace cokv::detail {

// What tokenizer.json would say: GPT-2's split pattern, and a BOS before the text where add_bos_token is set. Throws
// config_error naming the file and the field or line.
boost::json::value read_vocabulary_files(const std::filesystem::path& dir);

}  // namespace cokv::detail
