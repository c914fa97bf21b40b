#include "task_pause.hpp"

namespace cokv::detail {

void task_pause::wait() {
  if (set_aside()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return state_.load() == state::woken; });
}

void task_pause::wake() {
  // With the lock held: who waits may be gone, and this with it, once it has seen the state.
  std::unique_lock lock(mutex_);
  const auto before = state_.exchange(state::woken);
  if (before == state::set_aside) {
    lock.unlock();
    return go_on();
  }
  changed_.notify_all();
}

}  // namespace cokv::detail
