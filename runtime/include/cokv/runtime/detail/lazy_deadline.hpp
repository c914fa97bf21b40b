// A deadline that many operations have in turn, each from when it begins: one wait of the clock serves them all. To set
// it to a later time than the one that is waited for is a store.
//
//     lazy_deadline limit(ex, [this] { stop_.emit(asio::cancellation_type::terminal); });
//     limit.expect_within(30s);       // before each operation
//     limit.relax();                  // after it
//
// From its context's thread only. What is called, is called once for each time that has passed, never after relax() or
// the destructor.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "cokv/runtime/clock.hpp"

namespace cokv::detail {

class lazy_deadline {
 public:
  lazy_deadline(asio::any_io_executor ex, std::function<void()> on_expiry)
      : state_(std::make_shared<state>(std::move(ex), std::move(on_expiry))) {}
  lazy_deadline(const lazy_deadline&) = delete;
  lazy_deadline& operator=(const lazy_deadline&) = delete;
  ~lazy_deadline() { end(); }

  // duration::max() is no limit.
  void expect_within(duration limit) {
    const auto now = state_->time.now();
    if (limit > time_point::max() - now) return relax();
    state_->until = now + limit;
    if (state_->waited_for && *state_->waited_for <= *state_->until) return;
    if (state_->waited_for) state_->stop.emit(asio::cancellation_type::terminal);
    wait(state_);
  }
  void relax() noexcept { state_->until.reset(); }

  // No wait is left, which would be work of the context.
  void end() {
    relax();
    if (std::exchange(state_->waited_for, std::nullopt)) state_->stop.emit(asio::cancellation_type::terminal);
  }

 private:
  struct state {
    state(asio::any_io_executor e, std::function<void()> f)
        : ex(std::move(e)), time(clock::of(ex)), on_expiry(std::move(f)) {}

    asio::any_io_executor ex;
    clock& time;
    std::function<void()> on_expiry;
    std::optional<time_point> until;
    std::optional<time_point> waited_for;
    asio::cancellation_signal stop;
  };

  static void wait(const std::shared_ptr<state>& s) {
    const auto until = *s->until;
    s->waited_for = until;
    auto woken = [weak = std::weak_ptr(s), until](error_code) {
      auto self = weak.lock();
      if (!self || self->waited_for != until) return;  // a nearer deadline took this one's place
      self->waited_for.reset();
      if (!self->until) return;
      if (*self->until > self->time.now()) return wait(self);
      self->until.reset();
      self->on_expiry();
    };
    s->time.async_wait_until(
        until, asio::bind_executor(s->ex, asio::bind_cancellation_slot(s->stop.slot(), std::move(woken))));
  }

  std::shared_ptr<state> state_;
};

}  // namespace cokv::detail
