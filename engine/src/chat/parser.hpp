// A template's text to a program. What it does not know is refused here, by line: nothing is left to be found out when
// a chat is rendered.
#pragma once

#include "ast.hpp"
#include "lexer.hpp"

namespace cokv::chat {

// Throws syntax_error.
program parse_template(std::string_view source);

}  // namespace cokv::chat
