// Errors by name, as workers tell them to each other. What has no name here is a failure of the teller's: nobody acts
// on more than these.
#pragma once

#include <string_view>

#include "cokv/runtime/asio.hpp"

namespace cokv::cluster {

std::string_view name_of(error_code ec);  // "failed" for what is not listed; "ok" for none
// errc::partial for "failed" and for a name of tomorrow; never success.
error_code error_of(std::string_view name);

}  // namespace cokv::cluster
