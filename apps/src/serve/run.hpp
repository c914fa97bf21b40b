// `cokv serve`: a model behind the OpenAI routes, its KV in tiers, until SIGINT or SIGTERM.
#pragma once

#include <ostream>

#include "serve/options.hpp"

namespace cokv::serve {

// Returns after the drain. Throws config_error naming the flag or file that is at fault.
void run(const options& o, std::ostream& out);

}  // namespace cokv::serve
