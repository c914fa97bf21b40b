// What the log hears of writes that find no room, and of those that find some again. Under load both come hundreds of times
// a second; each is said at most once in ten seconds, with how many writes were refused meanwhile.
//
//     if (auto said = notice.refused(now)) spdlog::warn("{}", *said);    // a write was refused
//     if (auto said = notice.stored(now)) spdlog::info("{}", *said);     // a write was stored
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "cokv/runtime/clock.hpp"

namespace cokv::cache {

// On any thread. There is room again when writes were stored, and none refused, for ten seconds.
class full_notice {
 public:
  static constexpr duration pause = std::chrono::seconds(10);

  std::optional<std::string> refused(time_point now);
  std::optional<std::string> stored(time_point now);

 private:
  std::mutex mutex_;
  bool full_ = false;
  std::uint64_t all_ = 0, unsaid_ = 0;  // refused since there was room; of those, since it was said last
  time_point said_{}, last_{};
};

}  // namespace cokv::cache
