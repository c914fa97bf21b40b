// A reply of Redis (RESP 2), and a command as it is sent.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cokv::detail {

struct redis_value {
  enum class kind : std::uint8_t { nil, status, error, integer, string, array };

  kind what = kind::nil;
  std::string text = {};  // of a status, error or string
  long long integer = 0;
  std::vector<redis_value> elements = {};

  bool is(kind k) const noexcept { return what == k; }
};

// The kinds of answer that a command can have.
constexpr unsigned one_of(redis_value::kind a) { return 1u << static_cast<unsigned>(a); }
constexpr unsigned one_of(redis_value::kind a, redis_value::kind b) { return one_of(a) | one_of(b); }

// Views: they last until it is formatted.
using redis_command = std::vector<std::string_view>;

}  // namespace cokv::detail
