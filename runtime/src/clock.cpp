#include "cokv/runtime/clock.hpp"

#include <boost/asio/steady_timer.hpp>

#include "services.hpp"

namespace cokv {
namespace {

using steady = std::chrono::steady_clock;

// One heap and one steady_timer a context. A deadline usually goes before it is due (the operation that it guards
// ended): that is a heap operation and touches no timer. The timer is armed for the earliest deadline there was; when
// it fires early it is set again.
class real_clock final : public detail::clock_impl {
 public:
  explicit real_clock(asio::any_io_executor ex) : executor_(std::move(ex)) {
    if (auto* io = executor_.target<asio::io_context::executor_type>()) io_.emplace(*io);
  }

  time_point now() const noexcept override {
    return time_point(std::chrono::duration_cast<duration>(steady::now().time_since_epoch()));
  }
  wall_time wall_now() const noexcept override {
    return std::chrono::time_point_cast<duration>(std::chrono::system_clock::now());
  }

  // Not before: a timer brings the context a reactor, which makes it twice as dear to wake from another thread.
  void open() override {
    if (!closed_) timer_.emplace(executor_);
  }

  void add(detail::deadline_operation& op) noexcept override {
    auto& state = op.state();
    heap_.push(state.when.time_since_epoch().count(), state);
    if (!armed_ || state.when < armed_for_) arm(state.when);
  }

  void remove(detail::deadline_state& state) noexcept override {
    if (state.place == detail::heap_node::none) return;
    heap_.erase(state);
    if (heap_.empty() && !io_ && timer_) timer_->cancel();  // else it would keep the context running
  }

  void shutdown() override {
    closed_ = true;
    timer_.reset();
  }

 private:
  void arm(time_point when) {
    if (!timer_) return;
    armed_ = true;
    armed_for_ = when;
    std::uint64_t turn = ++turn_;
    timer_->expires_at(steady::time_point(when.time_since_epoch()));
    timer_->async_wait([this, turn](error_code) {
      if (io_) io_->on_work_started();
      if (turn == turn_) fire();
    });
    // The waiting operations are the work. The timer itself is none: a deadline whose operation has ended must not
    // hold run() up, and cancelling the timer each time costs as much as a timer per operation.
    if (io_) io_->on_work_finished();
  }

  void fire() {
    armed_ = false;
    std::int64_t current = now().time_since_epoch().count();
    while (!heap_.empty() && heap_.earliest() <= current)
      static_cast<detail::deadline_state&>(heap_.pop()).operation->complete({});
    if (!heap_.empty() && !armed_) arm(time_point(duration(heap_.earliest())));
  }

  asio::any_io_executor executor_;
  std::optional<asio::steady_timer> timer_;
  std::optional<asio::io_context::executor_type> io_;
  detail::deadline_heap heap_;
  time_point armed_for_{};
  std::uint64_t turn_ = 0;
  bool armed_ = false;
  bool closed_ = false;
};

}  // namespace

clock& clock::of(const asio::any_io_executor& ex) {
  auto& self = asio::use_service<clock>(asio::query(ex, asio::execution::context));
  if (!self.impl_) {
    self.ex_ = detail::service_executor(ex);
    self.impl_ = std::make_unique<real_clock>(self.get_executor());
  }
  return self;
}

}  // namespace cokv
