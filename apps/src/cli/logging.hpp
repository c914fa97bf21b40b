// Logs go to stderr, one line an event, through spdlog's default logger. Only commands and servers log, at their
// boundaries; libraries report by error_code.
//
//     spdlog::warn("cache server {} is down: serving by computing", url);
#pragma once

#include <spdlog/spdlog.h>

#include <string_view>

namespace cokv::cli {

// `level`: debug, info, warning, error or off.
void start_logging(std::string_view level);

}  // namespace cokv::cli
