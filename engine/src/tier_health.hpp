// Whether a tier may be tried. A failed one is left alone for a while that doubles with each failed try; then one
// operation tries it, and the rest still pass it by until that one has succeeded. A pure state machine: it is told the
// time.
#pragma once

#include <algorithm>

#include "cokv/runtime/clock.hpp"

namespace cokv {

class tier_health {
 public:
  tier_health(duration first, duration most) : first_(first), most_(most) {}

  bool bad() const noexcept { return bad_; }

  // The caller tries, and then says how it went.
  bool try_now(time_point now) noexcept {
    if (!bad_) return true;
    if (probing_ || now < retry_at_) return false;
    return probing_ = true;
  }

  // True when it has just gone bad.
  bool failed(time_point now) noexcept {
    if (!bad_) {
      bad_ = true;
      wait_ = first_;
    } else if (probing_) {
      wait_ = std::min(wait_ * 2, most_);
    } else {
      return false;  // begun before it went bad: says nothing new
    }
    const bool just = !probing_;
    probing_ = false;
    retry_at_ = now + wait_;
    return just;
  }

  // True when it has just come back.
  bool succeeded() noexcept {
    probing_ = false;
    return std::exchange(bad_, false);
  }

  void gave_up() noexcept { probing_ = false; }  // cancelled: nothing was learned

 private:
  duration first_, most_;
  duration wait_{};
  time_point retry_at_{};
  bool bad_ = false;
  bool probing_ = false;
};

}  // namespace cokv
