// How a store's failures are told over HTTP.
#pragma once

#include "http/message.hpp"

namespace cokv::cache {

enum class transfer { storing, reading };

http::problem not_lent();
http::problem problem_of(error_code ec, transfer way);

}  // namespace cokv::cache
