// A file whose first line is a key for somebody else's server.
#pragma once

#include <fstream>
#include <string>

#include "cokv/runtime/error.hpp"

namespace cokv::serve {

// Throws config_error naming the flag and the file.
inline std::string first_key(const std::string& flag, const std::string& file) {
  std::ifstream in(file);
  std::string key;
  if (!std::getline(in, key) || key.empty()) throw config_error(flag + ": " + file + ": no key in its first line");
  return key;
}

}  // namespace cokv::serve
