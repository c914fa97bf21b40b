// Threads that run what a device has to do, away from the loop. A oneTBB arena; plain threads under ThreadSanitizer,
// which reports oneTBB's own internals.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>

#include "cokv/runtime/detail/unique_function.hpp"

namespace cokv::detail {

class runnable {
 public:
  virtual ~runnable() = default;
  virtual void run() = 0;

 private:
  friend class worker_arena;
  std::shared_ptr<runnable> queued_;  // itself, while an arena has it: once at a time
};

class worker_arena {
 public:
  explicit worker_arena(int threads);
  ~worker_arena();  // waits until it is idle
  worker_arena(const worker_arena&) = delete;
  worker_arena& operator=(const worker_arena&) = delete;

  int concurrency() const noexcept { return threads_; }

  // From any thread. The reference is dropped before the arena counts as idle.
  void enqueue(std::shared_ptr<runnable> task);

  // A function, dropped uncalled if the arena closes before its turn.
  void submit(unique_function<void()> f);
  void close() { load_->closed.store(true); }

  bool idle() const;
  void wait_idle();

 private:
  struct threads;
  struct load {
    mutable std::mutex mutex;
    std::condition_variable none;
    std::size_t tasks = 0;
    std::atomic<bool> closed{false};
  };
  class function;

  static void run(load& l, std::shared_ptr<runnable> task) noexcept;

  int threads_;
  std::shared_ptr<load> load_ = std::make_shared<load>();  // outlives the arena under a thread that just finished
  std::shared_ptr<threads> impl_;                          // complete only where it is made
};

}  // namespace cokv::detail
