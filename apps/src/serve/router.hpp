// `cokv serve --role router`: the OpenAI routes in front of a prefill and a decode worker, which move the KV between them.
#pragma once

#include <ostream>

#include "cokv/runtime/asio.hpp"
#include "serve/options.hpp"

namespace cokv::serve {

// Until SIGINT or SIGTERM. Waits for both workers first. Throws config_error naming the flag, file or worker at fault.
awaitable<void> serve_router(const options& o, std::ostream& out);

}  // namespace cokv::serve
