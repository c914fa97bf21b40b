#include "cli/logging.hpp"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace cokv::cli {

void start_logging(std::string_view level) {
  auto logger = std::make_shared<spdlog::logger>("cokv", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
  logger->set_level(spdlog::level::from_str(std::string(level)));
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace cokv::cli
