// A task that waits for something outside its arena. On a thread of an arena the task is set aside and the thread runs
// others; on any other thread, and where arenas are plain threads, the thread blocks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

namespace cokv::detail {

class task_pause {
 public:
  void wait();  // returns after wake()
  void wake();  // once, from any thread, before, during or after wait() has begun

 private:
  enum class state { running, set_aside, woken };

  bool set_aside();  // false: not on a thread that could do something else
  void go_on();

  std::atomic<state> state_{state::running};
  void* suspended_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace cokv::detail
