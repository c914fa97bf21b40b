// What links over NCCL say of themselves, also in a build that has none.
#pragma once

#include <string>

#include "cokv/runtime/asio.hpp"

namespace cokv::detail {

// "NCCL 2.28.9". Loads it, and makes nothing.
result<std::string> nccl_version();

}  // namespace cokv::detail
