#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/task_arena.h>

#include <optional>
#include <thread>

#include "worker_arena.hpp"

namespace cokv::detail {
namespace {

// oneTBB keeps one thread fewer than the machine has for all arenas together, counting on the caller to help. Here the
// callers are event loops that never do, so the limit follows the sum of what the arenas were promised.
class promised_threads {
 public:
  void add(int n) {
    std::lock_guard lock(mutex_);
    promised_ += n;
    const auto wanted = std::max<std::size_t>(std::thread::hardware_concurrency(), promised_ + 1);
    // The smallest live limit wins, so the old one goes before the new one counts.
    limit_.reset();
    limit_.emplace(tbb::global_control::max_allowed_parallelism, wanted);
  }

 private:
  std::mutex mutex_;
  int promised_ = 0;
  std::optional<tbb::global_control> limit_;
};

promised_threads& promises() {
  static auto* instance = new promised_threads;  // never destroyed: oneTBB may be gone before us at exit
  return *instance;
}

}  // namespace

struct worker_arena::threads {
  tbb::task_arena arena;
  int promised;
  explicit threads(int n) : arena(n, 0), promised(n) {
    promises().add(n);
    arena.initialize();
  }
  ~threads() { promises().add(-promised); }
};

worker_arena::worker_arena(int threads)
    : threads_(std::max(threads, 1)), impl_(std::make_shared<worker_arena::threads>(threads_)) {}

void worker_arena::enqueue(std::shared_ptr<runnable> task) {
  {
    std::lock_guard lock(load_->mutex);
    ++load_->tasks;
  }
  // oneTBB calls a const copy, which can't give its reference up before the task counts as done.
  auto* queued = task.get();
  queued->queued_ = std::move(task);
  impl_->arena.enqueue([queued, l = load_] { run(*l, std::move(queued->queued_)); });
}

}  // namespace cokv::detail
