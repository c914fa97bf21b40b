#include "unwaited.hpp"

#include <sys/mman.h>

#include <system_error>
#include <thread>
#include <utility>

namespace cokv::detail {

// Never destroyed: their threads may outlive main().
unwaited& unwaited::closing() {
  static auto* one = new unwaited;
  return *one;
}

unwaited& unwaited::unmapping() {
  static auto* one = new unwaited;
  return *one;
}

unwaited& unwaited::freeing() {
  static auto* one = new unwaited;
  return *one;
}

void unwaited::run(std::function<void()> what) noexcept {
  std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(what));
  if (running_) return;
  try {
    std::thread([this] { serve(); }).detach();
    running_ = true;
  } catch (const std::system_error&) {
  }
}

void unwaited::serve() {
  for (std::unique_lock lock(mutex_);;) {
    if (waiting_.empty()) {
      running_ = false;
      return done_.notify_all();
    }
    auto what = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    what();
    what = nullptr;
    lock.lock();
  }
}

bool unwaited::wait_done(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  return done_.wait_for(lock, most, [this] { return !running_ && waiting_.empty(); });
}

void unmap_unwaited(void* data, std::size_t bytes, std::shared_ptr<const void> after) noexcept {
  if (bytes < unmapped_at_once)
    ::munmap(data, bytes);
  else
    unwaited::unmapping().run([data, bytes, after = std::move(after)] { ::munmap(data, bytes); });
}

}  // namespace cokv::detail
