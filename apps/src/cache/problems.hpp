// How a store's failures are told over HTTP.
#pragma once

#include "http/message.hpp"

namespace cokv::cache {

http::problem problem_of(error_code ec);

}  // namespace cokv::cache
