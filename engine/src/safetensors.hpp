// What a safetensors file and the index of its shards say, of their bytes alone. Everything that they claim is checked before
// it is believed.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "cokv/engine/weights.hpp"

namespace cokv::detail {

// What lies in a file: a tensor, or the place of one whose type nobody computes with (a mask, a list of positions), which
// is an error when it is asked for and not before.
struct stored_tensor {
  tensor_view view;
  std::string_view other;  // its type's name; empty where view.type is it
};
using stored_map = std::map<std::string, stored_tensor, std::less<>>;

// The views lie in `file`; every byte behind the header belongs to one of them. Both throw config_error: "name: ...".
stored_map read_safetensors(std::span<const std::byte> file, const std::string& name);

// model.safetensors.index.json: the file beside it that has a tensor, by the tensor's name.
std::map<std::string, std::string> read_safetensors_index(std::string_view text, const std::string& name);

}  // namespace cokv::detail
