// JSON that clients send. A member that is there twice is refused by name: parsers differ in which of the two they mean.
//
//     auto value = http::parse_json(*body);
//     if (!value) co_return co_await x.refuse(value.error());
#pragma once

#include <boost/json/value.hpp>
#include <boost/system/result.hpp>
#include <string_view>

#include "http/message.hpp"

namespace cokv::http {

boost::system::result<boost::json::value, problem> parse_json(std::string_view text);

}  // namespace cokv::http
