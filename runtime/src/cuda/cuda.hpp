// The CUDA device as the rest of the runtime sees it. No CUDA header here: a build without a toolkit links
// cuda_absent.cpp in place of the other files.
#pragma once

#include <memory>
#include <string>

#include "../device_service.hpp"
#include "cokv/runtime/device.hpp"

namespace cokv::cuda {

struct opened {
  std::shared_ptr<detail::device_backend> backend;
  std::shared_ptr<detail::device_resource> resource;
};

result<opened> open(const asio::any_io_executor& ex, int ordinal, const device_options& options);
std::string explain(int ordinal);

}  // namespace cokv::cuda
