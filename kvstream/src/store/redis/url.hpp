// Where a Redis is, or some nodes of a cluster: redis://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][/0]. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cokv/runtime/net.hpp"

namespace cokv::detail {

struct redis_url {
  std::string user, password;  // both as they are sent; an empty password: none
  std::vector<endpoint> hosts;
};

// errc::invalid_argument; errc::unsupported for another scheme or database.
result<redis_url> parse_redis_url(std::string_view text);

}  // namespace cokv::detail
