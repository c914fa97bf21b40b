// Cuts a template into text and tokens, as Jinja does with trim_blocks and lstrip_blocks set: a statement takes the line
// break after it and the white space before it on its line, '-' takes all white space on its side, '+' keeps it.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace cokv::chat {

// What a template has that can't be rendered, or that is no template at all.
struct syntax_error : std::runtime_error {
  syntax_error(std::uint32_t at, const std::string& what) : std::runtime_error(what), line(at) {}
  std::uint32_t line;
};

enum class token_kind : std::uint8_t {
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  real,
  op,
  end
};

struct token {
  token_kind kind;
  std::uint32_t line;
  std::string text;  // of a string: what it stands for
  std::int64_t integer = 0;
  double real = 0;
};

// Throws syntax_error. The source is valid UTF-8. The last token is `end`.
std::vector<token> tokenize(std::string_view source);

}  // namespace cokv::chat
