// What tells one run of a program from all others.
#pragma once

#include <cstdint>
#include <cstdio>
#include <random>
#include <string>

namespace cokv {

inline std::uint64_t random_number() {
  std::random_device source;
  return (std::uint64_t{source()} << 32) | source();
}

// 32 hexadecimal digits.
inline std::string random_id() {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(random_number()),
                static_cast<unsigned long long>(random_number()));
  return text;
}

}  // namespace cokv
