// Python's operations on text, which is a row of code points there and UTF-8 here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "value.hpp"

namespace cokv::chat {

bool ascii(std::string_view s) noexcept;
// The code point at the front of text that is valid UTF-8, and how many bytes it takes.
char32_t first_point(std::string_view s, std::size_t& bytes) noexcept;
void append_point(std::string& out, char32_t c);
std::size_t points(std::string_view s) noexcept;

// Where the code points of a text begin, and its end.
class point_index {
 public:
  explicit point_index(std::string_view s);
  std::int64_t size() const noexcept { return count_; }
  std::string_view part(std::int64_t from, std::int64_t to) const;

 private:
  std::string_view text_;
  std::vector<std::uint32_t> begins_;  // none: one byte each
  std::int64_t count_;
};

bool space_point(char32_t c) noexcept;      // str.isspace()
bool newline_point(char32_t c) noexcept;    // where str.splitlines() cuts
bool printable_point(char32_t c) noexcept;  // str.isprintable()

enum class side : std::uint8_t { left, right, both };
std::string_view strip(std::string_view s, side where) noexcept;
std::string_view strip(std::string_view s, std::string_view chars, side where, budget& b);
// At white space, or at `separator`; at most `most` cuts unless it is negative, from the right with `from_right`.
std::vector<std::string_view> split(std::string_view s, std::int64_t most, bool from_right, budget& b);
std::vector<std::string_view> split(std::string_view s, std::string_view separator, std::int64_t most, bool from_right,
                                    budget& b);
std::vector<std::string_view> split_lines(std::string_view s, bool keep_ends, budget& b);
std::string replace(std::string_view s, std::string_view from, std::string_view to, std::int64_t most, budget& b);
std::size_t find(std::string_view s, std::string_view what, std::size_t from = 0) noexcept;  // in linear time

// Where a character becomes several, or what it becomes depends on its neighbours, these fail.
std::string upper(std::string_view s);
std::string lower(std::string_view s);
std::string capitalize(std::string_view s);
std::string title(std::string_view s);        // str.title()
std::string title_words(std::string_view s);  // Jinja's filter: words begin after white space and -({[<

std::string repr(std::string_view s, budget& b);
std::string repr(double d);
bool parse_integer(std::string_view s, std::int64_t& out);  // as int(s) does; fails where the number is too large
bool parse_real(std::string_view s, double& out);           // as float(s) does

}  // namespace cokv::chat
