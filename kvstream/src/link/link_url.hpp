// Which kind of link, and where: tcp://HOST:PORT.
#pragma once

#include <string_view>

#include "cokv/runtime/net.hpp"

namespace cokv::detail {

struct link_url {
  endpoint at;
  std::string to_string() const { return "tcp://" + at.to_string(); }
};

// errc::invalid_argument for what is no URL, errc::unsupported for a scheme that this build lacks.
result<link_url> parse_link_url(std::string_view text);

}  // namespace cokv::detail
