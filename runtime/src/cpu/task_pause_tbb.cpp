#include <oneapi/tbb/task.h>
#include <oneapi/tbb/task_arena.h>

#include "task_pause.hpp"

namespace cokv::detail {

bool task_pause::set_aside() {
  if (tbb::this_task_arena::current_thread_index() == tbb::task_arena::not_initialized) return false;
  tbb::task::suspend([this](tbb::task::suspend_point here) {
    suspended_ = here;
    auto expected = state::running;
    // Set aside, and from here on whoever wakes it may be quicker than this function. Or woken already.
    if (!state_.compare_exchange_strong(expected, state::set_aside)) tbb::task::resume(here);
  });
  return true;
}

void task_pause::go_on() { tbb::task::resume(static_cast<tbb::task::suspend_point>(suspended_)); }

}  // namespace cokv::detail
