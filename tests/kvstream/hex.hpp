// Bytes as text, and the golden bytes that docs/protocol.md gives: fenced blocks whose first line is "hex NAME".
#pragma once

#include <cstddef>
#include <fstream>
#include <span>
#include <sstream>
#include <string>

namespace cokv {

inline std::string to_hex(std::span<const std::byte> bytes) {
  constexpr char digits[] = "0123456789abcdef";
  std::string out;
  for (auto b : bytes) {
    out.push_back(digits[std::to_integer<int>(b) >> 4]);
    out.push_back(digits[std::to_integer<int>(b) & 15]);
  }
  return out;
}

inline std::string golden_hex(const std::string& name) {
  std::ifstream file(COKV_SOURCE_DIR "/docs/protocol.md");
  std::string line, out;
  bool inside = false;
  while (std::getline(file, line)) {
    if (line == "```hex " + name) {
      inside = true;
    } else if (inside && line == "```") {
      return out;
    } else if (inside) {
      std::istringstream words(line);
      for (std::string word; words >> word;) out += word;
    }
  }
  return "no golden bytes named " + name;
}

}  // namespace cokv
