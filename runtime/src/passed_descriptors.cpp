#include "cokv/runtime/detail/passed_descriptors.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

namespace cokv::detail {
namespace {

std::atomic<std::size_t> there = 0;

void close_now(int fd) {
  ::close(fd);
  --there;
}

// Its thread is there while there is something to close, and may be held up beyond the end of everything else.
class closer {
 public:
  static closer& get() {
    static auto* one = new closer;
    return *one;
  }

  void close(int fd) {
    std::lock_guard lock(mutex_);
    waiting_.push_back(fd);
    if (running_) return;
    std::thread([this] { serve(); }).detach();
    running_ = true;
  }

 private:
  void serve() {
    for (std::unique_lock lock(mutex_);;) {
      if (waiting_.empty()) return (void)(running_ = false);
      const int fd = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      close_now(fd);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::deque<int> waiting_;
  bool running_ = false;
};

}  // namespace

std::shared_ptr<const int> passed_descriptor(int fd) {
  ++there;
  return {new int(fd), [](const int* held) {
            const int fd = *held;
            delete held;
            try {
              closer::get().close(fd);
            } catch (const std::system_error&) {
              // No thread to be had: it waits for the next.
            }
          }};
}

std::size_t passed_descriptors() noexcept { return there; }

bool too_many_passed() noexcept {
  const std::size_t now = there;
  rlimit most{};
  return now != 0 && ::getrlimit(RLIMIT_NOFILE, &most) == 0 && most.rlim_cur != RLIM_INFINITY &&
         now >= most.rlim_cur / 4;
}

}  // namespace cokv::detail
