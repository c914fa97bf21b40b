#include "worker_arena.hpp"

#include <algorithm>

namespace cokv::detail {

worker_arena::~worker_arena() {
  wait_idle();
  impl_.reset();
}

void worker_arena::run(load& l, std::shared_ptr<runnable> task) noexcept {
  task->run();
  task.reset();
  std::lock_guard lock(l.mutex);
  if (--l.tasks == 0) l.none.notify_all();
}

bool worker_arena::idle() const {
  std::lock_guard lock(load_->mutex);
  return load_->tasks == 0;
}

void worker_arena::wait_idle() {
  std::unique_lock lock(load_->mutex);
  load_->none.wait(lock, [&] { return load_->tasks == 0; });
}

}  // namespace cokv::detail
