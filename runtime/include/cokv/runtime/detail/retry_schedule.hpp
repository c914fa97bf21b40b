// What retry() decides, without a context: whether there is another attempt, and after what pause. The bound of the
// pause doubles with every failure and the pause itself is drawn evenly from zero up to it ("full jitter"), so that
// callers who failed together don't come back together. The same seed gives the same pauses on every platform.
//
//     retry_schedule plan({.attempts = 3}, seed, now);
//     plan.begin();                                          // the first attempt
//     std::optional<duration> pause = plan.pause(now);       // it failed; nothing: give up
#pragma once

#include <cstdint>
#include <optional>

#include "cokv/runtime/clock.hpp"

namespace cokv {

struct retry_options {
  int attempts = 5;                                      // with the first; 0: as many as the deadline allows
  duration first_pause = std::chrono::milliseconds(50);  // at most so long after the first failure, then doubled
  duration most_pause = std::chrono::seconds(5);         // up to this
  duration deadline = duration::max();                   // for all attempts and pauses together
  std::uint64_t seed = 0;                                // of the pauses; 0: the context's choice
};

namespace detail {

class retry_schedule {
 public:
  retry_schedule(const retry_options& options, std::uint64_t seed, time_point start);

  int attempts() const noexcept { return attempts_; }  // begun
  void begin() noexcept { ++attempts_; }
  duration left(time_point now) const noexcept;  // duration::max() without a deadline, never below zero

  // After a failed attempt. Nothing when that was the last one, or when the pause would outlast the deadline.
  std::optional<duration> pause(time_point now) noexcept;

 private:
  std::uint64_t random() noexcept;

  int limit_;
  int attempts_ = 0;
  duration bound_, most_;
  time_point deadline_;
  std::uint64_t state_;
};

}  // namespace detail
}  // namespace cokv
