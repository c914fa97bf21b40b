// What all of `cokv serve`'s processes have: a name for their model, who may ask, and certificates that are read again.
#pragma once

#include <string>

#include "http/metrics.hpp"
#include "http/server.hpp"
#include "openai/service.hpp"
#include "serve/options.hpp"

namespace cokv::serve {

std::string name_of(const options& o);

http::server_options front_of(const options& o, http::metrics& page);
void reload_front(http::server& s, const options& o);

// Of a model whose weights have this fingerprint.
openai::service_options api_of(const options& o, const id256& fingerprint, const sampling_params& sampling,
                               chat_template chat, wall_time now);

}  // namespace cokv::serve
