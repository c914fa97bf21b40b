// Links between stages say what they do, with the time of this machine; here only what goes wrong counts.
#pragma once

#include <spdlog/spdlog.h>

#include <algorithm>

namespace cokv::simulate {

class only_errors {
 public:
  only_errors() { spdlog::set_level(std::max(before_, spdlog::level::err)); }
  ~only_errors() { spdlog::set_level(before_); }
  only_errors(const only_errors&) = delete;

 private:
  spdlog::level::level_enum before_ = spdlog::get_level();
};

}  // namespace cokv::simulate
