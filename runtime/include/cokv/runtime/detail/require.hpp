// Rules that a caller's code must keep: breaking one ends the process with a line that names it, in every build. What
// input or a device can cause is an error_code instead.
//
//     COKV_REQUIRE(backend_, "a stream is made by device::make_stream before it is used");
#pragma once

#include <source_location>

namespace cokv::detail {

[[noreturn]] void broken_rule(const char* rule, const std::source_location& where) noexcept;

}  // namespace cokv::detail

#define COKV_REQUIRE(condition, rule) \
  (static_cast<bool>(condition) ? void() : ::cokv::detail::broken_rule(rule, std::source_location::current()))
