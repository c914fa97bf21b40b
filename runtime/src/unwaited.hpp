// A thread for what may take long and nobody waits for: it is there while there is something to do, and may be held up
// beyond the end of everything else. Each kind has its own, so that descriptors which somebody keeps from being closed
// keep no memory mapped.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace cokv::detail {

class unwaited {
 public:
  static unwaited& closing();
  static unwaited& unmapping();
  static unwaited& freeing();  // of what a device has to be idle for

  // Later, on the thread; in order. On any thread, and never waits. Where there is no thread to be had it is done with the next.
  void run(std::function<void()> what) noexcept;
  // Until nothing is left to do; false: there is, after so long.
  bool wait_done(std::chrono::milliseconds most);

 private:
  void serve();

  std::mutex mutex_;
  std::condition_variable done_;
  std::deque<std::function<void()>> waiting_;
  bool running_ = false;
};

// Less than this is unmapped in a millisecond: 20 to 30 ms a GiB of touched pages that others have, too, and 180 to 250 ms
// where they are given back to the system with it, as our own are and a dead peer's (x86-64, pages of 4 KiB).
inline constexpr std::size_t unmapped_at_once = 4 << 20;

// Then `after` goes, on the thread that unmapped it.
void unmap_unwaited(void* data, std::size_t bytes, std::shared_ptr<const void> after) noexcept;

}  // namespace cokv::detail
