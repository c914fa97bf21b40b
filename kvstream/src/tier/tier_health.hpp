// Whether a tier may be tried. A failed one is left alone for a while that doubles with each failed try; then one
// operation tries it, and the rest still pass it by until that one has succeeded. A pure state machine: it is told the
// time.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>

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

  // A tier that has no room is well otherwise. True when that is news; it is news again when for the longest wait
  // everything found room.
  bool full() const noexcept { return full_; }
  bool no_room(time_point now) noexcept {
    full_at_ = now;
    return !std::exchange(full_, true);
  }
  void had_room(time_point now) noexcept {
    if (full_ && now - full_at_ >= most_) full_ = false;
  }

 private:
  duration first_, most_;
  duration wait_{};
  time_point retry_at_{};
  bool bad_ = false;
  bool probing_ = false;
  time_point full_at_{};
  bool full_ = false;
};

// One operation's try of a tier. If that was to tell whether the tier is back, and ends without having told, another
// one may try.
class tier_try {
 public:
  tier_try() = default;
  static tier_try begin(std::shared_ptr<tier_health> health, time_point now) {
    tier_try t;
    const bool bad = health->bad();
    t.allowed_ = health->try_now(now);
    if (t.allowed_ && bad) t.probing_ = std::move(health);
    return t;
  }
  tier_try(tier_try&& o) noexcept
      : allowed_(std::exchange(o.allowed_, false)), probing_(std::exchange(o.probing_, nullptr)) {}
  tier_try& operator=(tier_try&& o) noexcept {
    if (this == &o) return *this;
    end();
    allowed_ = std::exchange(o.allowed_, false);
    probing_ = std::exchange(o.probing_, nullptr);
    return *this;
  }
  ~tier_try() { end(); }

  explicit operator bool() const noexcept { return allowed_; }
  bool probing() const noexcept { return probing_ != nullptr; }
  void told() noexcept { probing_ = nullptr; }  // the health was told how it went
  void end() noexcept {
    if (auto health = std::exchange(probing_, nullptr)) health->gave_up();
  }

 private:
  bool allowed_ = false;
  std::shared_ptr<tier_health> probing_;
};

}  // namespace cokv
