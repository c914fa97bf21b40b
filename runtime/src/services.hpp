// What the services of a real context share.
#pragma once

#include "cokv/runtime/asio.hpp"

namespace cokv::detail {

// The executor that a context's service keeps: it lives as long as the context, so it must not count as work.
inline asio::any_io_executor service_executor(const asio::any_io_executor& ex) {
  return asio::prefer(ex, asio::execution::outstanding_work.untracked, asio::execution::blocking.possibly);
}

}  // namespace cokv::detail
