// The JSON that :match is asked with: {"keys": ["hex", ...]}, or the list alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cokv/kvstream/block_key.hpp"
#include "http/message.hpp"

namespace cokv::cache {

struct key_list {
  std::vector<block_key> keys;
  std::optional<http::problem> refused;  // why there are none
};

key_list parse_key_list(std::string_view json, std::size_t max_keys);

}  // namespace cokv::cache
