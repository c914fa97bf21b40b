#include "cokv/runtime/semaphore.hpp"

namespace cokv {

void permit::release() {
  if (!from_) return;  // most are, moved from
  const auto from = std::move(from_);
  from->release(std::exchange(count_, 0));
}

namespace detail {

bool semaphore_state::take(std::size_t n) {
  if (!waiters.empty() || available < n) return false;
  available -= n;
  return true;
}

void semaphore_state::acquire(acquisition& begin, std::size_t n) {
  if (take(n)) return begin.complete({}, permit(shared_from_this(), n));
  waiter& op = begin.wait();
  op.state() = {n, shared_from_this()};
  op.on_cancel([](waiter& w, asio::cancellation_type_t) {
    auto from = w.state().from;
    w.fail(asio::error::operation_aborted);
    from->release(0);  // it may have been the one that held up the rest
  });
  waiters.push_back(op);
}

void semaphore_state::release(std::size_t n) {
  available += n;
  while (!waiters.empty() && waiters.front().state().count <= available) {
    const std::size_t count = waiters.front().state().count;
    available -= count;
    waiters.front().complete({}, permit(shared_from_this(), count));
  }
}

}  // namespace detail
}  // namespace cokv
