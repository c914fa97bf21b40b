#include "worker_arena.hpp"

#include <algorithm>

namespace cokv::detail {

class worker_arena::function final : public runnable {
 public:
  function(unique_function<void()> f, std::shared_ptr<load> l) : f_(std::move(f)), load_(std::move(l)) {}
  void run() override {
    if (!load_->closed.load()) f_();
  }

 private:
  unique_function<void()> f_;
  std::shared_ptr<load> load_;
};

void worker_arena::submit(unique_function<void()> f) { enqueue(std::make_shared<function>(std::move(f), load_)); }

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
