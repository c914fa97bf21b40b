// Host memory of every kind that a CPU device has.
#pragma once

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/buffer.hpp"

namespace cokv::detail {

// errc::out_of_memory for more than the machine has, errc::unsupported for exportable memory.
result<buffer> allocate_host(std::size_t bytes, memory_kind kind);

}  // namespace cokv::detail
