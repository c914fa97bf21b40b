#include "cache/full_notice.hpp"

#include <utility>

namespace cokv::cache {

std::optional<std::string> full_notice::refused(time_point now) {
  std::lock_guard lock(mutex_);
  ++all_;
  ++unsaid_;
  last_ = now;
  const bool first = !std::exchange(full_, true);
  if (!first && now - said_ < pause) return std::nullopt;
  said_ = now;
  const auto n = std::exchange(unsaid_, 0);
  if (first) return "no room for more KV: writes are refused until there is";
  return "still no room for all KV: " + std::to_string(n) + " more " + (n == 1 ? "write was" : "writes were") + " refused";
}

std::optional<std::string> full_notice::stored(time_point now) {
  std::lock_guard lock(mutex_);
  if (!full_ || now - last_ < pause) return std::nullopt;
  full_ = false;
  unsaid_ = 0;
  const auto n = std::exchange(all_, 0);
  return "there is room for KV again; " + std::to_string(n) + (n == 1 ? " write was" : " writes were") + " refused";
}

}  // namespace cokv::cache
