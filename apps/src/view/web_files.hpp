// The files of apps/web, which are in the binary.
//
//     x.respond(status::ok, "text/html; charset=utf-8", web_file("index.html"));
#pragma once

#include <string_view>

namespace cokv::view {

// Empty: there is none of that name.
std::string_view web_file(std::string_view name);

}  // namespace cokv::view
