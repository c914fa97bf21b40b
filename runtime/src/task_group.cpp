#include "cokv/runtime/task_group.hpp"

#include "cokv/runtime/detail/require.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv::detail {

scope_child::~scope_child() {
  unlink();
  auto s = std::move(in);
  s->leave(completed);
}

std::unique_ptr<scope_child> scope::open(bool body) {
  COKV_REQUIRE(started(), "a task_group runs children only inside with()");
  if (cancelled_) {
    // Cancelled from outside, with work that was still to be done: that is no success, even if all that ran was one.
    if (!on_purpose_ && !first_ && !thrown_) {
      first_ = asio::error::operation_aborted;
      errors_.push_back({body ? child_error::body : spawned_++, first_});
    }
    return nullptr;
  }
  if (!body && live_ > limit_) {  // the body is one of live_
    note(child_error::body, errc::queue_full, nullptr);
    return nullptr;
  }
  auto child = std::make_unique<scope_child>(shared_from_this(), body ? child_error::body : spawned_++);
  running_.push_back(*child);
  ++live_;
  return child;
}

void scope::note(std::size_t child, error_code ec, std::exception_ptr thrown) {
  if (thrown) {
    if (!thrown_) thrown_ = std::move(thrown);
    cancel(false);
    return;
  }
  if (!ec || (on_purpose_ && ec == asio::error::operation_aborted)) return;
  if (!first_) first_ = ec;
  errors_.push_back({child, ec});
  cancel(false);
}

void scope::cancel(bool on_purpose) {
  on_purpose_ = on_purpose_ || (on_purpose && !first_ && !thrown_);
  if (cancelled_) return;
  cancelled_ = true;
  // A signal may end children, and with them this scope, before it returns.
  auto self = shared_from_this();
  while (!running_.empty()) {
    auto& child = running_.front();
    running_.pop_front();
    signalled_.push_back(child);
    child.cancelled = true;
    if (child.started) child.signal.emit(asio::cancellation_type::all);
  }
}

void scope::leave(bool completed) {
  --live_;
  abandoned_ = abandoned_ || !completed;
  if (live_ == 0) finish_join();
}

void scope::join(joiner& op) {
  op.state() = this;
  op.on_cancel([](joiner& self, asio::cancellation_type_t) { self.state()->cancel(false); });
  join_.push_back(op);
  if (live_ > 0) return;
  // A background scope takes children meanwhile: then the last of them completes the join, or already has.
  ex_.post([self = shared_from_this()] {
    if (self->live_ == 0) self->finish_join();
  });
}

void scope::finish_join() {
  if (join_.empty()) return;
  if (abandoned_) return join_.front().abandon();  // the context is going away, and with it whoever waits here
  join_.front().complete({});
}

verdict scope::take_verdict() {
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  return {first_, std::move(errors_)};
}

}  // namespace cokv::detail
