// Where each name of a template is kept while it is rendered, decided as Jinja's compiler does: a loop's body, a macro and
// a block {% set %} have frames of their own, an if has none, and whether a name comes from the variables given or from
// a frame around is settled by which of them mention it, in the order they do.
#pragma once

#include "ast.hpp"

namespace cokv::chat {

// Throws syntax_error for names that stand for what is not supported.
program bind(body lines);

}  // namespace cokv::chat
