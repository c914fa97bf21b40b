#include <deque>
#include <thread>
#include <vector>

#include "worker_arena.hpp"

namespace cokv::detail {

struct worker_arena::threads {
  std::mutex mutex;
  std::condition_variable some;
  std::deque<std::shared_ptr<runnable>> queue;
  bool closed = false;
  std::vector<std::thread> pool;

  threads(int n, const std::shared_ptr<load>& l) {
    try {
      for (int i = 0; i < n; ++i) pool.emplace_back([this, l] { serve(*l); });
    } catch (...) {  // no thread to be had: those that there are must be joined
      end();
      throw;
    }
  }
  ~threads() { end(); }

  void serve(load& l) {
    std::unique_lock lock(mutex);
    for (;;) {
      some.wait(lock, [&] { return closed || !queue.empty(); });
      if (queue.empty()) return;
      auto task = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      run(l, std::move(task));
      lock.lock();
    }
  }

  void end() {
    {
      std::lock_guard lock(mutex);
      closed = true;
    }
    some.notify_all();
    for (auto& t : pool) t.join();
  }
};

worker_arena::worker_arena(int threads)
    : threads_(std::max(threads, 1)), impl_(std::make_shared<worker_arena::threads>(threads_, load_)) {}

void worker_arena::enqueue(std::shared_ptr<runnable> task) {
  {
    std::lock_guard lock(load_->mutex);
    ++load_->tasks;
  }
  {
    std::lock_guard lock(impl_->mutex);
    impl_->queue.push_back(std::move(task));
  }
  impl_->some.notify_one();
}

}  // namespace cokv::detail
