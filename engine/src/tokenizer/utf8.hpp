// UTF-8 one sequence at a time, with the distinction that a stream needs: broken here, or only not complete yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cokv::detail {

enum class utf8_kind : std::uint8_t { valid, broken, partial };

// The first sequence of a text that is not empty. valid: a whole one. broken: `length` bytes, at least 1, begin a
// sequence that cannot go on (Unicode's maximal subpart). partial: all `length` bytes left begin a valid one.
struct utf8_step {
  utf8_kind kind;
  std::uint8_t length;
};

utf8_step utf8_first(std::string_view text) noexcept;

// How many leading bytes are valid UTF-8; a cut sequence at the end does not count.
std::size_t utf8_valid_prefix(std::string_view text) noexcept;

}  // namespace cokv::detail
